//! The result of a call: a status for the program and a line of text for its author. No panic crosses into C.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tqkv::KvError;
use tqkv::error::CacheError;
use tqkv_core::{DecodeError, EncodeError, ShapeError};
use tqkv_simd::codec::BatchError;

/// The status of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TqkvStatus {
    /// The call succeeded.
    TqkvOk = 0,
    /// A pointer is null. Nothing was done.
    TqkvNullPointer = 1,
    /// A size, number or name is not accepted. Nothing was done.
    TqkvBadArgument = 2,
    /// A vector holds NaN or an infinity, or is too large. Nothing was appended or attended. Blocks before it
    /// are encoded.
    TqkvBadVector = 3,
    /// The scale of a block is NaN or infinite. Vectors before it are decoded.
    TqkvBadBlock = 4,
    /// `out` is too short for the result. Only the number of values was written. (A budget that is used up
    /// returns TQKV_NO_BUDGET.)
    TqkvFull = 5,
    /// A token that left the hot window could not be encoded. It stays uncompressed.
    TqkvNotEncoded = 6,
    /// The sliding window has evicted tokens that were requested or would be seen again.
    TqkvEvicted = 7,
    /// The machine lacks the instruction set or the threads that the environment asks for.
    TqkvUnsupported = 8,
    /// A file or a function of the caller cannot be read or written: the file of the cold tier, or a
    /// snapshot.
    TqkvIo = 9,
    /// A defect of the library. If the call was to change a cache, every later call with it returns this
    /// status: free it.
    TqkvPanic = 10,
    /// Any other failure.
    TqkvOther = 11,
    /// The budget has fewer free bytes than the call may need. Nothing was done. Free or truncate another
    /// cache of the budget, and call again.
    TqkvNoBudget = 12,
    /// The layer holds no tokens yet.
    TqkvEmpty = 13,
    /// The bytes read are not a snapshot, are damaged or cut short, or come from a cache with another spec.
    /// The cache is unchanged.
    TqkvBadSnapshot = 14,
    /// A limit is reached, and nothing was done. Either a cache would exceed the tokens of its spec, or
    /// device memory, the pages of a GPU cache or a sequence there are full.
    TqkvNoRoom = 15,
    /// The system cannot provide the memory that the passed sizes need. Nothing was done. Pass fewer tokens,
    /// or free memory.
    TqkvNoMemory = 16,
    /// The bytes are no state of llama.cpp or no pack of one, or are damaged or cut short.
    TqkvBadSession = 17,
}

/// A status with its text.
#[derive(Debug)]
pub(crate) struct Failure {
    status: TqkvStatus,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: TqkvStatus, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Puts the subject before the text.
    pub(crate) fn about(self, what: &str) -> Self {
        Self { text: format!("{what}: {}", self.text), ..self }
    }

    /// Replaces the status by that of a failed file or function.
    pub(crate) fn of_io(self) -> Self {
        Self { status: TqkvStatus::TqkvIo, ..self }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(TqkvStatus::TqkvBadArgument, text)
    }

    fn panic(payload: Box<dyn Any + Send>) -> Self {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied());
        let text = format!("a defect of tqkv: {}", text.unwrap_or("a panic without a text"));
        // The payload is not dropped, because its destructor may panic again.
        std::mem::forget(payload);
        Self::new(TqkvStatus::TqkvPanic, text)
    }
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        let status = match error {
            KvError::Query { .. } => TqkvStatus::TqkvBadVector,
            _ => TqkvStatus::TqkvBadArgument,
        };
        Self::new(status, error.to_string())
    }
}

impl From<CacheError> for Failure {
    fn from(error: CacheError) -> Self {
        let status = match error {
            CacheError::Shape(error) => return error.into(),
            CacheError::Of { index, error } => {
                return Self::from(*error).about(&format!("caches[{index}]"));
            }
            CacheError::Memory { .. } => TqkvStatus::TqkvNoMemory,
            CacheError::BadSpec(_)
            | CacheError::NoCache { .. }
            | CacheError::KvHead { .. }
            | CacheError::Selection(_)
            | CacheError::Blocks(_)
            | CacheError::BadRope(_)
            | CacheError::Slot { .. }
            | CacheError::Bias { .. } => TqkvStatus::TqkvBadArgument,
            // If the tokens lie within the sequence, they were evicted. Other tokens never existed.
            CacheError::NoTokens { start, end, len, .. } if start <= end && end <= len => {
                TqkvStatus::TqkvEvicted
            }
            CacheError::NoTokens { .. } => TqkvStatus::TqkvBadArgument,
            CacheError::Full { .. } => TqkvStatus::TqkvNoBudget,
            CacheError::TooLong { .. } => TqkvStatus::TqkvNoRoom,
            CacheError::Empty { .. } => TqkvStatus::TqkvEmpty,
            CacheError::Snapshot(_) => TqkvStatus::TqkvBadSnapshot,
            CacheError::BadVector { .. } | CacheError::BadValue { .. } => TqkvStatus::TqkvBadVector,
            CacheError::Encode(_) => TqkvStatus::TqkvNotEncoded,
            CacheError::Evicted { .. } => TqkvStatus::TqkvEvicted,
            CacheError::Level(_) | CacheError::Threads(_) => TqkvStatus::TqkvUnsupported,
            CacheError::Spill(_) => TqkvStatus::TqkvIo,
            _ => TqkvStatus::TqkvOther,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ShapeError> for Failure {
    fn from(error: ShapeError) -> Self {
        Self::argument(error.to_string())
    }
}

impl From<BatchError<EncodeError>> for Failure {
    fn from(error: BatchError<EncodeError>) -> Self {
        let status = match error.error {
            EncodeError::NonFinite | EncodeError::OutOfRange => TqkvStatus::TqkvBadVector,
            EncodeError::WrongLength => TqkvStatus::TqkvBadArgument,
            _ => TqkvStatus::TqkvOther,
        };
        Self::new(status, error.to_string())
    }
}

impl From<BatchError<DecodeError>> for Failure {
    fn from(error: BatchError<DecodeError>) -> Self {
        let status = match error.error {
            DecodeError::NonFiniteScale => TqkvStatus::TqkvBadBlock,
            DecodeError::WrongLength => TqkvStatus::TqkvBadArgument,
            _ => TqkvStatus::TqkvOther,
        };
        Self::new(status, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an entry point. An error or a panic becomes a status and the text of the thread.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> TqkvStatus {
    // A panic can only leave a cache half changed, and the lock of that cache then refuses every call.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return TqkvStatus::TqkvOk,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::panic(payload),
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending keeps no text.
    let _ = LAST.try_with(|last| last.replace(text));
    failure.status
}

/// Runs the body of an entry point without a status. A panic returns `otherwise`.
pub(crate) fn guard_quietly<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        otherwise
    })
}

/// Returns one line about the last failed call of this thread, which names what is accepted. It is empty if
/// no call failed. The text is valid until the next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_last_error() -> *const c_char {
    guard_quietly(c"".as_ptr(), || LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr()))
}

/// Returns the name of a status, such as "TQKV_OK", or "unknown status" for other numbers.
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_status_name(status: u32) -> *const c_char {
    let name = match status {
        0 => c"TQKV_OK",
        1 => c"TQKV_NULL_POINTER",
        2 => c"TQKV_BAD_ARGUMENT",
        3 => c"TQKV_BAD_VECTOR",
        4 => c"TQKV_BAD_BLOCK",
        5 => c"TQKV_FULL",
        6 => c"TQKV_NOT_ENCODED",
        7 => c"TQKV_EVICTED",
        8 => c"TQKV_UNSUPPORTED",
        9 => c"TQKV_IO",
        10 => c"TQKV_PANIC",
        11 => c"TQKV_OTHER",
        12 => c"TQKV_NO_BUDGET",
        13 => c"TQKV_EMPTY",
        14 => c"TQKV_BAD_SNAPSHOT",
        15 => c"TQKV_NO_ROOM",
        16 => c"TQKV_NO_MEMORY",
        17 => c"TQKV_BAD_SESSION",
        _ => c"unknown status",
    };
    name.as_ptr()
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tqkv_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the text belongs to this thread and is read before the next call.
        unsafe { CStr::from_ptr(tqkv_last_error()) }.to_str().unwrap().to_string()
    }

    #[test]
    fn a_panic_is_a_status_with_its_text() {
        assert_eq!(guard(|| panic!("number {}", 7)), TqkvStatus::TqkvPanic);
        assert_eq!(last(), "a defect of tqkv: number 7");
        assert_eq!(guard(|| std::panic::panic_any(3_u8)), TqkvStatus::TqkvPanic);
        assert_eq!(last(), "a defect of tqkv: a panic without a text");
        assert_eq!(guard_quietly(5, || panic!("dropped")), 5);
    }

    #[test]
    fn a_text_with_a_zero_byte_arrives() {
        assert_eq!(guard(|| Err(Failure::argument("a\0b"))), TqkvStatus::TqkvBadArgument);
        assert_eq!(last(), "a b");
    }

    #[test]
    fn the_text_is_that_of_the_thread() {
        assert_eq!(guard(|| Err(Failure::argument("here"))), TqkvStatus::TqkvBadArgument);
        assert_eq!(std::thread::spawn(last).join().unwrap(), "");
        assert_eq!(guard(|| Ok(())), TqkvStatus::TqkvOk);
        assert_eq!(last(), "here");
    }

    #[test]
    fn failures_have_the_status_of_their_kind() {
        use TqkvStatus::*;
        let evicted = CacheError::Evicted { len: 1, first_live: 2 };
        for (error, status) in [
            (CacheError::BadSpec("x".into()), TqkvBadArgument),
            (CacheError::Selection("x".into()), TqkvBadArgument),
            (CacheError::Encode("x".into()), TqkvNotEncoded),
            (evicted, TqkvEvicted),
            (CacheError::NoTokens { start: 1, end: 3, first_live: 2, len: 3 }, TqkvEvicted),
            (CacheError::NoTokens { start: 1, end: 4, first_live: 0, len: 3 }, TqkvBadArgument),
            (CacheError::NoTokens { start: 2, end: 1, first_live: 0, len: 3 }, TqkvBadArgument),
            (CacheError::Full { needed: 3, free: 1, limit: 2 }, TqkvNoBudget),
            (CacheError::Empty { layer: 0 }, TqkvEmpty),
            (CacheError::NoCache { layer: 0 }, TqkvBadArgument),
            (CacheError::KvHead { layer: 0, kv_head: 2, num_kv_heads: 2 }, TqkvBadArgument),
            (CacheError::Snapshot("x".into()), TqkvBadSnapshot),
            (CacheError::Threads("x".into()), TqkvUnsupported),
            (CacheError::Spill("x".into()), TqkvIo),
            (CacheError::Memory { bytes: 5 }, TqkvNoMemory),
            (KvError::Layer { layer: 1, num_layers: 1 }.into(), TqkvBadArgument),
            (KvError::Query { layer: 0, token: 0, head: 0 }.into(), TqkvBadVector),
        ] {
            let text = error.to_string();
            let failure = Failure::from(error.clone());
            assert_eq!((failure.status, failure.text), (status, text.clone()));
            let failure = Failure::from(CacheError::Of { index: 3, error: Box::new(error) });
            assert_eq!((failure.status, failure.text), (status, format!("caches[3]: {text}")));
        }
    }
}
