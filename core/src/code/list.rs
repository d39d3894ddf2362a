//! The list of codecs, one row each. Ids, types, names, numbers and dispatch are made from the rows.

/// Passes the list to a macro: `for_each_code!([my_macro] [arguments])` becomes
/// `my_macro! { [arguments] rows }`. A row is `Id "name" number rotation [layout] levels;`.
///
/// To add a codec of a known layout, add its row and, if it has levels of its own, their table. Names and
/// numbers are stored in files: from the first release on, rows may be added, but neither changed nor
/// removed.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_code {
    ([$($then:tt)*] $arguments:tt) => {
        $($then)*! {
            $arguments
            F16 "f16" 0 plain [F16] Values;
            I8 "i8" 1 rotated [Bytes] Codes($crate::code::int8::UNIT);
            S2 "s2" 18 rotated [Dense { bits: 2 }] LloydMax;
            S3 "s3" 19 rotated [Dense { bits: 3 }] LloydMax;
            S4 "s4" 20 rotated [Dense { bits: 4 }] LloydMax;
            S5 "s5" 21 rotated [Dense { bits: 5 }] LloydMax;
            N2 "n2" 34 rotated [Dense { bits: 2 }] Nested;
            N3 "n3" 35 rotated [Dense { bits: 3 }] Nested;
            N4 "n4" 36 rotated [Dense { bits: 4 }] Nested;
            Q8_0 "q8_0" 64 plain [Runs { bits: 8 }] Codes(1.0);
            Q4_0 "q4_0" 65 plain [Runs { bits: 4 }] Codes(1.0);
            T1 "t1" 128 rotated [Planes(Plain::Bits(0))] Trellis(&tables::T1);
            T2 "t2" 130 rotated [Planes(Plain::Bits(1))] Trellis(&tables::T2);
            T2H "t2h" 131 rotated [Planes(Plain::PairOfThree)] Trellis(&tables::T2H);
            T3 "t3" 132 rotated [Planes(Plain::Bits(2))] Trellis(&tables::T3);
            T3H "t3h" 134 rotated [Planes(Plain::PairOfSix)] Trellis(&tables::T3H);
            T4 "t4" 133 rotated [Planes(Plain::Bits(3))] Trellis(&tables::T4);
            T2S8 "t2s8" 145 rotated [Planes(Plain::Bits(1))] Trellis(&tables::T2S8);
            M2 "m2" 160 quarters [Planes(Plain::Quarters([4, 2, 1, 1]))] Trellis(&tables::M2);
            M3 "m3" 161 quarters [Planes(Plain::Quarters([4, 3, 3, 2]))] Trellis(&tables::M3);
        }
    };
}

/// `with_code!(id, C => expression)`: the expression with the type `C` set to the [`crate::code::Code`] of a
/// [`crate::CodecId`]. It has an arm per codec and works in a `const fn`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_code {
    ($id:expr, $code:ident => $body:expr) => {
        $crate::for_each_code!([$crate::with_code_arms] [$id, $code => $body])
    };
}

/// The arms of [`with_code!`].
#[doc(hidden)]
#[macro_export]
macro_rules! with_code_arms {
    (
        [$id:expr, $code:ident => $body:expr]
        $($row:ident $name:literal $number:literal $rotation:ident [$($layout:tt)*] $levels:ident $(($of:expr))?;)*
    ) => {
        match $id {
            $($crate::CodecId::$row => {
                type $code = $crate::code::$row;
                $body
            })*
        }
    };
}
