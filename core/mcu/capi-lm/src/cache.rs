//! The supported codecs of keys and values: one constant per pair and head dim. Only the pairs that a program
//! names are linked.

use crate::TqkvLmStatus;
use core::marker::PhantomData;
use tqkv_core::code::{Code, I8, S2, S3, S4, T2S8};
use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
use tqkv_lm::{Head, Lm, LmError, Logits, Model, Shape};

/// Alignment of the memory of a model, in bytes.
pub const TQKV_LM_ALIGN: usize = 8;

/// First tokens that every cache keeps in 8 bits and never forgets.
pub const TQKV_LM_SINKS: usize = 4;

/// Newest tokens that every cache keeps in 8 bits.
pub const TQKV_LM_NEWEST: usize = 16;

type Exact<const D: usize> = ExactTokens<D, i8, TQKV_LM_SINKS, TQKV_LM_NEWEST>;
type Running<const D: usize, K, V> =
    Lm<'static, 'static, D, K, V, Fastest, i8, TQKV_LM_SINKS, TQKV_LM_NEWEST>;
type Tiered<const D: usize, K, V> = Head<'static, D, K, V, Fastest, i8, TQKV_LM_SINKS, TQKV_LM_NEWEST>;

#[cfg(all(feature = "dsp", target_arch = "arm", target_os = "none"))]
type Fastest = tqkv_simd::Dsp;
#[cfg(all(feature = "dsp", target_arch = "arm", target_os = "none"))]
// SAFETY: the builder of the library promises with the feature that the processor has the DSP extension.
const FASTEST: Fastest = unsafe { tqkv_simd::Dsp::assume_supported() };
#[cfg(not(all(feature = "dsp", target_arch = "arm", target_os = "none")))]
type Fastest = tqkv_core::Portable;
#[cfg(not(all(feature = "dsp", target_arch = "arm", target_os = "none")))]
const FASTEST: Fastest = tqkv_core::Portable;

/// Codecs of keys and values at one head dim. Its content is private. Only constants that a program names are
/// linked.
pub struct TqkvLmCache {
    head_dim: u16,
    /// Bytes per coded token of one KV head.
    slot_bytes: usize,
    /// Bytes of the exact tokens of one KV head.
    exact_bytes: usize,
    /// Bytes of an opened handle, and of a KV head without its tokens.
    handle_bytes: usize,
    head_bytes: usize,
    /// Makes a handle in memory. The memory is aligned to TQKV_LM_ALIGN, writable for the whole plan, and
    /// used by nothing else. The plan is that of this cache for the model.
    pub(crate) open:
        unsafe fn(&'static Self, Model<'static>, &Plan, usize, *mut u8) -> Result<*mut TqkvLm, LmError>,
    /// This function and those below take a handle of this cache that no other thread uses.
    pub(crate) push: unsafe fn(*mut TqkvLm, u32) -> Result<(), LmError>,
    /// Returns logits that the next call overwrites.
    pub(crate) logits: unsafe fn(*mut TqkvLm) -> Logits<'static>,
    pub(crate) clear: unsafe fn(*mut TqkvLm),
    pub(crate) position: unsafe fn(*mut TqkvLm) -> u32,
    pub(crate) vocab: unsafe fn(*mut TqkvLm) -> u32,
}

/// `i8` keys and values, head dim 64.
#[unsafe(no_mangle)]
pub static TQKV_LM_64_I8: TqkvLmCache = Kind::<64, I8, I8>::CACHE;
/// `s4` keys and values, head dim 64.
#[unsafe(no_mangle)]
pub static TQKV_LM_64_S4: TqkvLmCache = Kind::<64, S4, S4>::CACHE;
/// `s4` keys and `s3` values, head dim 64.
#[unsafe(no_mangle)]
pub static TQKV_LM_64_S4_S3: TqkvLmCache = Kind::<64, S4, S3>::CACHE;
/// `t2s8` keys and values, head dim 64.
#[unsafe(no_mangle)]
pub static TQKV_LM_64_T2S8: TqkvLmCache = Kind::<64, T2S8, T2S8>::CACHE;
/// `i8` keys and values, head dim 128.
#[unsafe(no_mangle)]
pub static TQKV_LM_128_I8: TqkvLmCache = Kind::<128, I8, I8>::CACHE;
/// `s4` keys and values, head dim 128.
#[unsafe(no_mangle)]
pub static TQKV_LM_128_S4: TqkvLmCache = Kind::<128, S4, S4>::CACHE;
/// `s4` keys and `s3` values, head dim 128.
#[unsafe(no_mangle)]
pub static TQKV_LM_128_S4_S3: TqkvLmCache = Kind::<128, S4, S3>::CACHE;
/// `t2s8` keys and values, head dim 128.
#[unsafe(no_mangle)]
pub static TQKV_LM_128_T2S8: TqkvLmCache = Kind::<128, T2S8, T2S8>::CACHE;
/// `s2` keys and values, head dim 128.
#[unsafe(no_mangle)]
pub static TQKV_LM_128_S2: TqkvLmCache = Kind::<128, S2, S2>::CACHE;

/// A model at work in the memory that it was given. Its content is private.
pub struct TqkvLm {
    mark: u32,
    cache: &'static TqkvLmCache,
}

/// Marks memory where a handle was opened.
const MARK: u32 = 0x4d4c_5154;

/// The content of an opened handle.
#[repr(C)]
struct Opened<const D: usize, K: Code, V: Code> {
    /// The first field, so that a pointer to it is also a pointer to the whole.
    handle: TqkvLm,
    lm: Running<D, K, V>,
}

/// The layout of the memory: the handle, then the parts below.
pub(crate) struct Plan {
    heads: usize,
    work: usize,
    exact: usize,
    tokens: usize,
    /// Bytes of the coded tokens of one KV head.
    ring_bytes: usize,
    pub(crate) total: usize,
}

impl TqkvLmCache {
    /// The layout for a context of this many tokens.
    pub(crate) fn plan(&self, shape: &Shape, context: u32) -> Result<Plan, TqkvLmStatus> {
        if shape.head_dim != self.head_dim {
            return Err(TqkvLmStatus::TqkvLmHeadDim);
        }
        self.places(shape, context).ok_or(TqkvLmStatus::TqkvLmContext)
    }

    fn places(&self, shape: &Shape, context: u32) -> Option<Plan> {
        let context = usize::try_from(context).ok().filter(|&context| context > 0)?;
        let after =
            |start: usize, bytes: usize| start.checked_add(bytes)?.checked_next_multiple_of(TQKV_LM_ALIGN);
        let coded = context.saturating_sub(TQKV_LM_SINKS + TQKV_LM_NEWEST);
        let ring_bytes = coded.checked_mul(self.slot_bytes)?;
        let heads = after(0, self.handle_bytes)?;
        let work = after(heads, shape.rings().checked_mul(self.head_bytes)?)?;
        let exact = after(work, 4 * shape.work_words())?;
        let tokens = after(exact, shape.rings().checked_mul(self.exact_bytes)?)?;
        let total = after(tokens, shape.rings().checked_mul(ring_bytes)?)?;
        // A slice cannot be larger.
        isize::try_from(total).ok().map(|_| Plan { heads, work, exact, tokens, ring_bytes, total })
    }
}

impl TqkvLm {
    /// Returns the cache of a handle.
    ///
    /// # Safety
    /// `lm` was opened, or points to the readable bytes of a handle, or is null.
    pub(crate) unsafe fn of(lm: *mut Self) -> Result<&'static TqkvLmCache, TqkvLmStatus> {
        let lm = crate::pointer::input(lm)?;
        // SAFETY: readable by the caller's promise, and every bit pattern is a value of the mark.
        if unsafe { (&raw const (*lm).mark).read() } != MARK {
            return Err(TqkvLmStatus::TqkvLmNotOpen);
        }
        // SAFETY: it has the mark, so it was opened.
        Ok(unsafe { (&raw const (*lm).cache).read() })
    }
}

/// The functions for one pair of codecs.
struct Kind<const D: usize, K, V>(PhantomData<(K, V)>);

impl<const D: usize, K: Code + 'static, V: Code + 'static> Kind<D, K, V> {
    const KEYS: &'static FixedCodec<D, K, Fastest> = &FixedCodec::DEFAULT.with_kernels(FASTEST);
    const VALUES: &'static FixedCodec<D, V, Fastest> = &FixedCodec::DEFAULT.with_kernels(FASTEST);

    const CACHE: TqkvLmCache = {
        assert!(align_of::<Opened<D, K, V>>() <= TQKV_LM_ALIGN);
        assert!(align_of::<Tiered<D, K, V>>() <= TQKV_LM_ALIGN);
        assert!(align_of::<Exact<D>>() <= TQKV_LM_ALIGN);
        TqkvLmCache {
            head_dim: D as u16,
            slot_bytes: RingCache::<D, K, V>::SLOT_BYTES,
            handle_bytes: size_of::<Opened<D, K, V>>(),
            exact_bytes: size_of::<Exact<D>>(),
            head_bytes: size_of::<Tiered<D, K, V>>(),
            open: Self::open,
            push: Self::push,
            logits: Self::logits,
            clear: Self::clear,
            position: Self::position,
            vocab: Self::vocab,
        }
    };

    /// # Safety
    /// The contract of the field of this name.
    unsafe fn open(
        cache: &'static TqkvLmCache,
        model: Model<'static>,
        plan: &Plan,
        sinks: usize,
        memory: *mut u8,
    ) -> Result<*mut TqkvLm, LmError> {
        let (rings, words) = (model.shape().rings(), model.shape().work_words());
        // SAFETY: the plan lies in the memory, with its parts apart and aligned. All of it is written before
        // it is read.
        let (heads, work) = unsafe {
            memory.write_bytes(0, plan.total);
            let heads = memory.add(plan.heads).cast::<Tiered<D, K, V>>();
            let exact = memory.add(plan.exact).cast::<Exact<D>>();
            for index in 0..rings {
                let tokens = memory.add(plan.tokens + index * plan.ring_bytes);
                let tokens = core::slice::from_raw_parts_mut(tokens, plan.ring_bytes);
                exact.add(index).write(Exact::new());
                let ring = RingCache::new(Self::KEYS, Self::VALUES, tokens, sinks);
                heads.add(index).write(Head::new(ring.with_exact(&mut *exact.add(index))));
            }
            let work = core::slice::from_raw_parts_mut(memory.add(plan.work).cast::<i32>(), words);
            (core::slice::from_raw_parts_mut(heads, rings), work)
        };
        let handle = TqkvLm { mark: MARK, cache };
        let opened = memory.cast::<Opened<D, K, V>>();
        // SAFETY: the handle is the first part of the plan.
        unsafe { opened.write(Opened { handle, lm: Lm::new(model, heads, work, FASTEST)? }) };
        Ok(opened.cast())
    }

    /// Returns the model of a handle.
    ///
    /// # Safety
    /// `lm` is a handle of this kind that no other thread uses.
    unsafe fn lm(lm: *mut TqkvLm) -> &'static mut Running<D, K, V> {
        // SAFETY: by the caller's promise. A handle is the first field of the opened struct.
        unsafe { &mut (*lm.cast::<Opened<D, K, V>>()).lm }
    }

    /// # Safety
    /// The contract of [`Self::lm`], here and in the functions below.
    unsafe fn push(lm: *mut TqkvLm, token: u32) -> Result<(), LmError> {
        // SAFETY: the caller's promise.
        unsafe { Self::lm(lm) }.push(token)
    }

    unsafe fn logits(lm: *mut TqkvLm) -> Logits<'static> {
        // SAFETY: the caller's promise.
        unsafe { Self::lm(lm) }.logits()
    }

    unsafe fn clear(lm: *mut TqkvLm) {
        // SAFETY: the caller's promise.
        unsafe { Self::lm(lm) }.clear();
    }

    unsafe fn position(lm: *mut TqkvLm) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { Self::lm(lm) }.position()
    }

    unsafe fn vocab(lm: *mut TqkvLm) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { Self::lm(lm) }.model().shape().vocab
    }
}
