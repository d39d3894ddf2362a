//! Which instruction set to use: found once, passed to every call.
//!
//! A [`Level`] carries the token that proves its instruction set, so a level that exists can be
//! used, and safe code cannot make one up. Names exist on every machine ([`LevelName`]); asking
//! for one that the machine lacks is an error, never a silent fallback.

use crate::lines::Machine;
use core::fmt;
use tqkv_core::Portable;

#[cfg(target_arch = "aarch64")]
use crate::aarch64::neon::{Neon, NeonDot};
#[cfg(target_arch = "x86_64")]
use crate::x86::{avx2::Avx2, avx512::Avx512};

/// The name of a level, known on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LevelName {
    /// Plain Rust, everywhere.
    Portable,
    /// x86-64-v3.
    Avx2,
    /// Ice Lake, Zen 4 and later.
    Avx512,
    /// AArch64.
    Neon,
    /// AArch64 with the dot product.
    NeonDot,
}

impl LevelName {
    /// All names, slowest first within an architecture.
    pub const ALL: [Self; 5] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Neon, Self::NeonDot];

    /// Name in `TQKV_LEVEL`, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
            Self::NeonDot => "neondot",
        }
    }
}

/// Why a level was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LevelError {
    /// No level has that name.
    Unknown,
    /// This machine cannot run it.
    Missing(LevelName),
}

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown level: accepted are portable, avx2, avx512, neon, neondot"),
            Self::Missing(name) => {
                write!(f, "this machine cannot run level {}; it has", name.name())?;
                for (i, level) in Level::available().enumerate() {
                    write!(f, "{} {}", if i == 0 { "" } else { "," }, level.name().name())?;
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for LevelError {}

/// An instruction set that this machine can run, with its proof.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA, F16C, BMI.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 with VBMI and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// NEON with the dot product.
    #[cfg(target_arch = "aarch64")]
    NeonDot(NeonDot),
}

impl PartialEq for Level {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Level {}

impl Level {
    /// The level's name.
    pub const fn name(self) -> LevelName {
        match self {
            Self::Portable => LevelName::Portable,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => LevelName::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => LevelName::Avx512,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => LevelName::Neon,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot(_) => LevelName::NeonDot,
        }
    }

    /// The level of that name.
    ///
    /// # Errors
    /// [`LevelError::Missing`] where this machine cannot run it.
    pub fn new(name: LevelName) -> Result<Self, LevelError> {
        let level = match name {
            LevelName::Portable => Some(Self::Portable),
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            LevelName::Avx2 => Avx2::new().map(Self::Avx2),
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            LevelName::Avx512 => Avx512::new().map(Self::Avx512),
            #[cfg(all(target_arch = "aarch64", feature = "std"))]
            LevelName::Neon => Neon::new().map(Self::Neon),
            #[cfg(all(target_arch = "aarch64", feature = "std"))]
            LevelName::NeonDot => NeonDot::new().map(Self::NeonDot),
            #[allow(unreachable_patterns, reason = "every level exists on some architecture only")]
            _ => None,
        };
        level.ok_or(LevelError::Missing(name))
    }

    /// The level called `name`, as in [`LevelName::name`].
    ///
    /// # Errors
    /// The name is unknown, or this machine cannot run the level.
    pub fn from_name(name: &str) -> Result<Self, LevelError> {
        let known = LevelName::ALL.into_iter().find(|level| level.name() == name);
        Self::new(known.ok_or(LevelError::Unknown)?)
    }

    /// The levels of this machine, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        LevelName::ALL.into_iter().filter_map(|name| Self::new(name).ok())
    }

    /// The fastest level of this machine.
    pub fn fastest() -> Self {
        Self::available().last().unwrap_or(Self::Portable)
    }

    /// The level that `TQKV_LEVEL` names, or the fastest one where it is not set.
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

    /// Runs `kernel` compiled for this level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => run(Portable, kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(isa) => run(isa, kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(isa) => run(isa, kernel),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(isa) => run(isa, kernel),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot(isa) => run(isa, kernel),
        }
    }
}

fn run<I: Machine, K: Kernel>(isa: I, kernel: K) -> K::Output {
    isa.apart(
        #[inline(always)]
        |isa| kernel.run(isa),
    )
}

/// A page-sized piece of work, generic over the instruction set. `run` and everything in it that
/// works on registers is `#[inline(always)]`: what is not inlined is compiled without the
/// instruction set, which cost 27x once.
pub(crate) trait Kernel {
    /// What the work gives.
    type Output;
    /// Does the work.
    fn run<I: Machine>(self, isa: I) -> Self::Output;
}
