//! Keys and values in the blocks of an engine, which owns the memory, the block tables and the lengths.
//!
//! The handle holds no tokens and never changes, so any number of threads may call with it. What is written is the
//! memory of the engine, which passes it with each call.

use crate::error::{Failure, TqkvStatus};
use crate::floats::{Room, one_of, values};
use crate::pointer::{self, Call, Plain};
use crate::spec;
use std::ffi::{c_char, c_void};
use tqkv::paged::{ExactTokens, Line, Paged, Pages, Rule, Side, Step};

/// The work on blocks of one layout.
#[derive(Debug)]
pub struct TqkvPaged(Paged);

/// One layer's blocks of keys and values, in memory of the program that is aligned to 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvPages {
    /// The blocks, or those of keys alone if `values` is not null.
    pub memory: *mut c_void,
    /// Bytes of `memory`. There are as many blocks as have room.
    pub bytes: usize,
    /// Bytes from a block to the next, a multiple of 64.
    pub stride: usize,
    /// The values in memory of their own. Null if those of a block follow its keys.
    pub values: *mut c_void,
    /// Bytes of `values`.
    pub values_bytes: usize,
    /// Bytes from the values of a block to those of the next, a multiple of 64.
    pub values_stride: usize,
}

/// The rows of a step, one for each token with a query. Rows of one sequence have the same blocks and lengths of their
/// own; if they follow each other, its codes are read once for all of them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvStep {
    /// Number of rows.
    pub rows: usize,
    /// Entries of the table for each row.
    pub entries: usize,
    /// Blocks, [rows, entries]. What follows the last token of a row may be any number.
    pub table: *const i32,
    /// Tokens of each row, its own included.
    pub lengths: *const i32,
    /// The first token that each row sees; null if all see from the first one on.
    pub starts: *const i32,
}

/// How a layer attends. A struct of zeros is the rule of most models.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TqkvRule {
    /// Factor of the logits; 0 for 1/sqrt(head_dim).
    pub scale: f32,
    /// Logits l become cap * tanh(l / cap); 0 for none.
    pub soft_cap: f32,
    /// Newest tokens that a row sees; 0 for all.
    pub window: usize,
    /// Learned sinks: a logit for each query head; null for none.
    pub sinks: *const f32,
    /// Keys that are attended to as they are, [num_kv_heads, places, head_dim] of `exact_dtype`; null for none. The
    /// step shows the codes of other tokens.
    pub exact_k: *const c_void,
    /// Their values, of the same shape.
    pub exact_v: *const c_void,
    /// Number of values of `exact_k`, and of `exact_v`.
    pub exact_values: usize,
    /// The type of both, a `tqkv_dtype`.
    pub exact_dtype: u32,
    /// Places of exact tokens that each row sees, [rows, exact_columns]. One that is not below `exact_held` stands for
    /// none.
    pub exact_places: *const i64,
    /// Places of each row.
    pub exact_columns: usize,
    /// Number of places that may hold a token.
    pub exact_held: usize,
}

impl Plain for TqkvPages {}
impl Plain for TqkvStep {}
impl Plain for TqkvRule {}

/// Bytes of a line, the unit of memory of blocks.
const LINE: usize = size_of::<Line>();

/// Bytes as lines.
fn lines(what: &str, bytes: usize) -> Result<usize, Failure> {
    if bytes.is_multiple_of(LINE) {
        return Ok(bytes / LINE);
    }
    Err(Failure::argument(format!("{what} of {bytes} bytes is not valid: expected a multiple of {LINE}")))
}

/// Blocks that are read.
fn read<'c>(call: &'c Call, paged: &Paged, pages: *const TqkvPages) -> Result<Pages<&'c [Line]>, Failure> {
    let pages = &call.slice("pages", pages, 1)?[0];
    let of =
        |what, memory: *mut c_void, bytes| call.slice::<Line>(what, memory.cast_const().cast(), bytes / LINE);
    arranged(paged, pages, of)
}

/// Blocks that are written.
fn write<'c>(
    call: &'c Call,
    paged: &Paged,
    pages: *const TqkvPages,
) -> Result<Pages<&'c mut [Line]>, Failure> {
    let pages = &call.slice("pages", pages, 1)?[0];
    arranged(paged, pages, |what, memory: *mut c_void, bytes| {
        call.room::<Line>(what, memory.cast(), bytes / LINE)
    })
}

fn arranged<M: AsRef<[Line]>>(
    paged: &Paged,
    pages: &TqkvPages,
    of: impl Fn(&'static str, *mut c_void, usize) -> Result<M, Failure>,
) -> Result<Pages<M>, Failure> {
    let keys = of("memory of pages", pages.memory, pages.bytes)?;
    let stride = lines("stride", pages.stride)?;
    if pages.values.is_null() {
        return Ok(Pages::together(paged, keys, stride)?);
    }
    let values = of("values of pages", pages.values, pages.values_bytes)?;
    let of_values = lines("values_stride", pages.values_stride)?;
    Ok(Pages::apart(paged, [keys, values], [stride, of_values])?)
}

fn step(call: &Call, step: *const TqkvStep) -> Result<Step<'_>, Failure> {
    let step = &call.slice("step", step, 1)?[0];
    let entries = step.rows.checked_mul(step.entries).ok_or_else(|| {
        Failure::argument(format!(
            "a table of {} by {} entries is not valid: expected one in memory",
            step.rows, step.entries
        ))
    })?;
    Ok(Step {
        table: call.slice("table", step.table, entries)?,
        lengths: call.slice("lengths", step.lengths, step.rows)?,
        starts: if step.starts.is_null() { &[] } else { call.slice("starts", step.starts, step.rows)? },
    })
}

/// The rule of a call with so many rows.
fn rule<'c>(call: &'c Call, paged: &Paged, rule: *const TqkvRule, rows: usize) -> Result<Rule<'c>, Failure> {
    if rule.is_null() {
        return Ok(Rule::default());
    }
    let rule = &call.slice("rule", rule, 1)?[0];
    let given = |x: f32| (x != 0.0).then_some(x);
    let heads = paged.layout().num_heads;
    let exact = (!rule.exact_k.is_null()).then(|| {
        let of = |what, pointer| values(call, what, rule.exact_dtype, (pointer, rule.exact_values));
        let places = rows.saturating_mul(rule.exact_columns);
        Ok::<_, Failure>(ExactTokens {
            keys: of("exact_k", rule.exact_k)?,
            values: of("exact_v", rule.exact_v)?,
            places: call.slice("exact_places", rule.exact_places, places)?,
            held: rule.exact_held,
        })
    });
    Ok(Rule {
        scale: given(rule.scale),
        soft_cap: given(rule.soft_cap),
        window: (rule.window > 0).then_some(rule.window),
        sinks: if rule.sinks.is_null() { &[] } else { call.slice("sinks", rule.sinks, heads)? },
        exact: exact.transpose()?,
    })
}

/// Makes the work on blocks of `block_tokens` tokens, a multiple of 32 up to 512. `spec` is a text as in `tqkv_create`
/// with the shape, one or two codecs, and `seed=`, `scale-mode=` or `effort=`: "layers=1 heads=32 kv-heads=8
/// head-dim=128 s4". It holds no tokens, and one is enough for all layers with this shape. On failure `*paged` is null.
///
/// # Safety
/// `spec` is null or ends with a zero. `paged` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_paged_create(
    spec: *const c_char,
    block_tokens: usize,
    paged: *mut *mut TqkvPaged,
) -> TqkvStatus {
    // SAFETY: `spec` is text and `paged` has room for a handle, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        call.give("paged", paged, || {
            let layout = spec::layout(call, spec)?.block_tokens(block_tokens);
            Ok(TqkvPaged(Paged::new(layout)?))
        })
    })
}

/// Frees the work on blocks; null is accepted. The memory of blocks belongs to the program.
///
/// # Safety
/// `paged` is null or a handle from `tqkv_paged_create` that is not freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_paged_free(paged: *mut TqkvPaged) {
    // SAFETY: `tqkv_paged_create` gave it, and it is freed once, by the contract of this call.
    unsafe { pointer::free(paged) }
}

/// Writes the bytes of the keys and of the values of a block, both multiples of 64. A block takes the sum of them.
///
/// # Safety
/// `paged` is null or a handle that is not freed. `keys` and `values` are null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_paged_block_bytes(
    paged: *const TqkvPaged,
    keys: *mut usize,
    values: *mut usize,
) -> TqkvStatus {
    // SAFETY: `paged` is a handle, and `keys` and `values` have room for a number, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let [of_keys, of_values] = call.handle("paged", paged)?.0.side_lines();
        let (keys, values) = (call.place("keys", keys)?, call.place("values", values)?);
        keys.write(of_keys * LINE);
        values.write(of_values * LINE);
        Ok(())
    })
}

/// Encodes tokens to places of blocks. `places` is `[tokens]`: the number of a block times its tokens, plus the slot
/// there. A token whose place is negative or not there is skipped, and if a place comes twice, the later token stays.
/// `k` is [tokens, num_kv_heads, head_dim] of a `tqkv_dtype`, after RoPE, and `v` has its shape. A vector that cannot
/// be encoded, because it is not finite, becomes zeros; `refused`, which may be null, gets the number of these. The
/// first token of 32 slots is written no later than the others.
///
/// # Safety
/// `paged` is null or a handle that is not freed. `pages` is null or describes memory that nothing else uses during
/// the call. The other pointers are null or point to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_paged_store(
    paged: *const TqkvPaged,
    pages: *const TqkvPages,
    places: *const i64,
    tokens: usize,
    dtype: u32,
    k: *const c_void,
    k_values: usize,
    v: *const c_void,
    v_values: usize,
    refused: *mut usize,
) -> TqkvStatus {
    // SAFETY: `paged` is a handle, `pages` describes memory of the call, and the other pointers have their values, by
    // the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvPaged(paged) = call.handle("paged", paged)?;
        let places = call.slice("places", places, tokens)?;
        let k = values(call, "k", dtype, (k, k_values))?;
        let v = values(call, "v", dtype, (v, v_values))?;
        let refused = if refused.is_null() { None } else { Some(call.place("refused", refused)?) };
        let mut pages = write(call, paged, pages)?;
        let count = paged.store(k, v, places, &mut pages)?;
        if let Some(refused) = refused {
            refused.write(count);
        }
        Ok(())
    })
}

/// Attends with the queries of each row of a step. `q` is [rows, num_heads, head_dim] and `out` has its shape, each of
/// a `tqkv_dtype`. A row without tokens gets zeros. `lse`, [rows, num_heads], gets the logarithms of the sums of
/// exponentials, with which results over different tokens are joined; it may be null. `rule` may be null for the rule
/// of most models.
///
/// # Safety
/// `paged` is null or a handle that is not freed. `pages`, `step` and `rule` are null or describe memory that nothing
/// writes during the call. The other pointers are null or point to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_paged_attend(
    paged: *const TqkvPaged,
    pages: *const TqkvPages,
    step: *const TqkvStep,
    rule: *const TqkvRule,
    q_dtype: u32,
    q: *const c_void,
    q_values: usize,
    out_dtype: u32,
    out: *mut c_void,
    out_values: usize,
    lse: *mut f32,
    lse_values: usize,
) -> TqkvStatus {
    // SAFETY: `paged` is a handle, `pages`, `step` and `rule` describe memory of the call, and the other pointers have
    // their values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvPaged(paged) = call.handle("paged", paged)?;
        let (pages, step) = (read(call, paged, pages)?, self::step(call, step)?);
        let rule = self::rule(call, paged, rule, step.lengths.len())?;
        let q = values(call, "q", q_dtype, (q, q_values))?;
        let out = Room::new(call, "out", out_dtype, out, out_values)?;
        let lse = if lse.is_null() { None } else { Some(call.room("lse", lse, lse_values)?) };
        out.fill(|out| Ok(paged.attend(q, &pages, &step, &rule, out, lse)?))
    })
}

/// Decodes the first tokens of sequences, the rows of `step`, to rows of `out`, [any, num_kv_heads, head_dim]. `side`
/// is 0 for keys and 1 for values. `firsts`, [rows of the step], has the row of `out` of each sequence's first token.
/// Rows that are not there, and rows of tokens whose block is not there, are left as they are.
///
/// # Safety
/// `paged` is null or a handle that is not freed. `pages` and `step` are null or describe memory that nothing writes
/// during the call. The other pointers are null or point to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_paged_gather(
    paged: *const TqkvPaged,
    side: u32,
    pages: *const TqkvPages,
    step: *const TqkvStep,
    firsts: *const i32,
    out: *mut f32,
    out_values: usize,
) -> TqkvStatus {
    // SAFETY: `paged` is a handle, `pages` and `step` describe memory of the call, and the other pointers have their
    // values, by the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvPaged(paged) = call.handle("paged", paged)?;
        let side = one_of("side", side, &[Side::Keys, Side::Values])?;
        let (pages, step) = (read(call, paged, pages)?, self::step(call, step)?);
        let firsts = call.slice("firsts", firsts, step.lengths.len())?;
        Ok(paged.gather(side, &pages, &step, firsts, call.room("out", out, out_values)?)?)
    })
}

/// Copies blocks, keys and values, in this order: `from` and `to` are `[blocks]`. If a block is not there, nothing is
/// copied.
///
/// # Safety
/// `paged` is null or a handle that is not freed. `pages` is null or describes memory that nothing else uses during
/// the call. The other pointers are null or point to the passed number of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tqkv_paged_copy(
    paged: *const TqkvPaged,
    pages: *const TqkvPages,
    from: *const usize,
    to: *const usize,
    blocks: usize,
) -> TqkvStatus {
    // SAFETY: `paged` is a handle, `pages` describes memory of the call, and the other pointers have their values, by
    // the contract of this call.
    unsafe { Call::new() }.run(|call| {
        let TqkvPaged(paged) = call.handle("paged", paged)?;
        let (from, to) = (call.slice("from", from, blocks)?, call.slice("to", to, blocks)?);
        let pairs: Vec<_> = from.iter().copied().zip(to.iter().copied()).collect();
        Ok(write(call, paged, pages)?.copy(&pairs)?)
    })
}
