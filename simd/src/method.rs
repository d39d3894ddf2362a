//! How the methods of a token are compiled for its instruction set.

/// A method of a token, or of registers that only a token makes, whose body is compiled for `$features`. The
/// intrinsics of these features are safe in the body, and the compiler refuses any others. A body cannot name
/// `self`: if it needs the value, the first argument is `v: V`. Its closures have the features too, unless
/// they are `#[inline(always)]`.
///
/// The compiler inlines a body by its size, as it does intrinsics. It ends up in
/// [`tqkv_core::unstable::machine::Memory::apart`], which has at least its features. A large method is
/// therefore an `#[inline(always)]` method that calls these methods.
///
/// Memory is read and written by safe casts, one register at a time (DECISIONS.md, D16).
macro_rules! method {
    ($features:literal, $(#[$meta:meta])* fn $name:ident $(<$(const $g:ident: $kind:ty),+>)? (
        $this:ident $(: $This:ty)? $(, $arg:ident: $type:ty)* $(,)?
    ) $(-> $output:ty)? $body:block) => {
        $(#[$meta])*
        #[inline(always)]
        fn $name $(<$(const $g: $kind),+>)? (self $(, $arg: $type)*) $(-> $output)? {
            #[target_feature(enable = $features)]
            #[inline]
            fn inner $(<$(const $g: $kind),+>)? ($($this: $This,)? $($arg: $type),*) $(-> $output)? $body
            // SAFETY: `self` is a token, which proves these features, or registers, which only a token makes.
            unsafe { inner $(::<$($g),+>)? ($({ let this: $This = self; this },)? $($arg),*) }
        }
    };
}

pub(crate) use method;
