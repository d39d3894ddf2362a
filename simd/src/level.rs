//! The instruction set: detected once, passed to every call.
//!
//! A [`Level`] carries the token that proves its instruction set. An existing level can therefore be used,
//! and safe code cannot create one that the machine lacks. Names exist on every machine ([`LevelName`]). A
//! request for a level that the machine lacks is an error, never a silent fallback.
//!
//! [`for_each_level!`] is the only list: a new instruction set needs its files and a row here.

use crate::lines::Machine;
use core::fmt;
use tqkv_core::unstable::machine::Memory;

/// Every level except the portable one, slowest first within an architecture. A row holds the name, the name
/// in `TQKV_LEVEL`, the condition for it to be compiled, and the token. Calls the macro `$with` with `$given`
/// and the rows.
macro_rules! for_each_level {
    ([$($with:tt)*] $given:tt) => {
        $($with)*! { $given
            /// AVX2, FMA, F16C, BMI: x86-64-v3.
            Avx2 = "avx2", target_arch = "x86_64", crate::x86::avx2::Avx2<false>;
            /// AVX2 with AVX-VNNI: Alder Lake and later, Zen 5.
            AvxVnni = "avxvnni", target_arch = "x86_64", crate::x86::avx2::Avx2<true>;
            /// AVX-512 with VBMI and VNNI: Ice Lake, Zen 4 and later.
            Avx512 = "avx512", target_arch = "x86_64", crate::x86::avx512::Avx512;
            /// NEON: every AArch64 processor.
            Neon = "neon", target_arch = "aarch64", crate::aarch64::neon::Neon<false>;
            /// NEON with the dot product.
            NeonDot = "neondot", target_arch = "aarch64", crate::aarch64::neon::Neon<true>;
            /// Vectors of WebAssembly, if the build has them.
            Simd128 = "simd128", all(target_arch = "wasm32", target_feature = "simd128"), crate::wasm::simd128::Simd128;
        }
    };
}

macro_rules! define_levels {
    (() $($(#[$doc:meta])* $level:ident = $name:literal, $with_it:meta, $token:ty;)*) => {
        /// The name of a level, known on every machine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum LevelName {
            /// Plain Rust, on every machine.
            Portable,
            $($(#[$doc])* $level,)*
        }

        impl LevelName {
            /// All names, slowest first within an architecture.
            pub const ALL: &'static [Self] = &[Self::Portable, $(Self::$level),*];

            /// Name in `TQKV_LEVEL`, on the command line and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Portable => "portable",
                    $(Self::$level => $name,)*
                }
            }
        }

        /// An instruction set that this machine can run, with its proof.
        #[derive(Clone, Copy, Debug)]
        #[non_exhaustive]
        pub enum Level {
            /// Plain Rust.
            Portable,
            $($(#[$doc])* #[cfg($with_it)] $level($token),)*
        }

        impl Level {
            /// The level's name.
            pub const fn name(self) -> LevelName {
                match self {
                    Self::Portable => LevelName::Portable,
                    $(#[cfg($with_it)] Self::$level(_) => LevelName::$level,)*
                }
            }

            /// The level with this name.
            ///
            /// # Errors
            /// [`LevelError::Missing`] if this machine does not support it.
            pub fn new(name: LevelName) -> Result<Self, LevelError> {
                let level = match name {
                    LevelName::Portable => Some(Self::Portable),
                    $(
                        #[cfg(all($with_it, feature = "std"))]
                        LevelName::$level => <$token>::new().map(Self::$level),
                        #[cfg(not(all($with_it, feature = "std")))]
                        LevelName::$level => None,
                    )*
                };
                level.ok_or(LevelError::Missing(name))
            }
        }
    };
}

for_each_level!([define_levels]());

/// Runs `$fast` with `$isa` set to the token of a level. The caller may pass `$portable` for the portable
/// level, if core already has that code compiled.
macro_rules! at_level {
    ($level:expr, $isa:ident => $body:expr) => {
        $crate::level::at_level!($level, $isa => $body, {
            let $isa = tqkv_core::Portable;
            $body
        })
    };
    ($level:expr, $isa:ident => $fast:expr, $portable:expr) => {
        $crate::level::for_each_level!([$crate::level::match_level] ($level, $isa => $fast, $portable))
    };
}

macro_rules! match_level {
    (($level:expr, $isa:ident => $fast:expr, $portable:expr)
        $($(#[$doc:meta])* $name:ident = $text:literal, $with_it:meta, $token:ty;)*) => {
        match $level {
            $crate::level::Level::Portable => $portable,
            $(#[cfg($with_it)] $crate::level::Level::$name($isa) => $fast,)*
        }
    };
}

pub(crate) use {at_level, for_each_level, match_level};

/// Why there is no such level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LevelError {
    /// No level has this name.
    Unknown,
    /// This machine does not support the level.
    Missing(LevelName),
}

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("unknown level: accepted are")?;
                list(f, LevelName::ALL.iter().copied())
            }
            Self::Missing(name) => {
                write!(f, "this machine cannot run level {}; it has", name.name())?;
                list(f, Level::available().map(Level::name))
            }
        }
    }
}

/// Writes the names, separated by commas.
fn list(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = LevelName>) -> fmt::Result {
    for (i, name) in names.enumerate() {
        write!(f, "{} {}", if i == 0 { "" } else { "," }, name.name())?;
    }
    Ok(())
}

impl core::error::Error for LevelError {}

impl PartialEq for Level {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Level {}

impl Level {
    /// The level called `name`, as in [`LevelName::name`].
    ///
    /// # Errors
    /// The name is unknown, or this machine does not support the level.
    pub fn from_name(name: &str) -> Result<Self, LevelError> {
        let known = LevelName::ALL.iter().copied().find(|level| level.name() == name);
        Self::new(known.ok_or(LevelError::Unknown)?)
    }

    /// The levels of this machine, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        LevelName::ALL.iter().filter_map(|&name| Self::new(name).ok())
    }

    /// The fastest level of this machine.
    pub fn fastest() -> Self {
        Self::available().last().unwrap_or(Self::Portable)
    }

    /// The level that `TQKV_LEVEL` names, or the fastest one if it is not set.
    ///
    /// # Errors
    /// `TQKV_LEVEL` names a level that is unknown or that this machine lacks.
    #[cfg(feature = "std")]
    pub fn detect() -> Result<Self, LevelError> {
        match std::env::var_os("TQKV_LEVEL") {
            None => Ok(Self::fastest()),
            Some(name) => Self::from_name(name.to_str().ok_or(LevelError::Unknown)?),
        }
    }

    /// Runs `work` compiled for this level. The compiler makes vector code of its plain loops, and the
    /// results stay the same to the bit. `work` is an `#[inline(always)]` closure, as is all that it calls.
    #[inline]
    pub fn plain<R>(self, work: impl FnOnce() -> R) -> R {
        at_level!(self, isa => isa.apart(#[inline(always)] |_| work()), work())
    }

    /// Runs `kernel` compiled for this level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        at_level!(self, isa => run(isa, kernel))
    }

    /// Runs `kernels`, which enters this level itself, once per piece.
    pub(crate) fn choose<K: KernelChoice>(self, kernels: K) {
        at_level!(self, isa => kernels.run(isa))
    }
}

fn run<I: Machine, K: Kernel>(isa: I, kernel: K) -> K::Output {
    isa.apart(
        #[inline(always)]
        |isa| kernel.run(isa),
    )
}

/// A page-sized piece of work, generic over the instruction set. `run` and everything in it that works on
/// registers is `#[inline(always)]`. A function that is not inlined is compiled without the instruction set,
/// which once cost a factor of 27.
pub(crate) trait Kernel {
    /// The result of the work.
    type Output;
    /// Does the work.
    fn run<I: Machine>(self, isa: I) -> Self::Output;
}

/// A page-sized piece of work with many kernels: one for each codec and number of heads. `run` chooses among
/// them in plain code. It calls each through [`tqkv_core::unstable::machine::Memory::apart`], so that each is
/// a separate function. With one function per level for all kernels, the compiler took three times as long.
pub(crate) trait KernelChoice {
    /// Does the work.
    fn run<I: Machine>(self, isa: I);
}
