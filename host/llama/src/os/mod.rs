//! The functions of the operating system: address space, free memory, and symbols of loaded libraries.
//!
//! A range of reserved address space is committed before it is used. Its memory is zeros then, and becomes
//! resident when it is touched. A discarded range gives its memory back.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;
