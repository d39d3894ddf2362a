//! Flushing a writer although signals interrupt it.

use std::io::{self, ErrorKind, Write};

/// Flushes a writer, and tries again after an interrupt (`EINTR`). [`Write::write_all`] does that too, but
/// [`Write::flush`] does not.
///
/// # Errors
/// Errors of the writer, except `Interrupted`.
pub fn flush<W: Write + ?Sized>(writer: &mut W) -> io::Result<()> {
    loop {
        match writer.flush() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            flushed => return flushed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that is interrupted this many times, and then may fail.
    struct Interrupted(usize, Option<ErrorKind>);

    impl Write for Interrupted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            match (self.0.checked_sub(1), self.1) {
                (Some(left), _) => {
                    self.0 = left;
                    Err(ErrorKind::Interrupted.into())
                }
                (None, Some(kind)) => Err(kind.into()),
                (None, None) => Ok(()),
            }
        }
    }

    #[test]
    fn a_flush_is_repeated_until_nothing_interrupts_it() {
        assert!(flush(&mut Interrupted(5, None)).is_ok());
        let failed = flush(&mut Interrupted(5, Some(ErrorKind::StorageFull))).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::StorageFull);
    }
}
