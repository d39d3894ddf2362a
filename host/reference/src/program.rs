//! A codec of another program, which is asked for reconstructions.
//!
//! The program reads requests on its standard input and answers each on its standard output:
//!
//! ```text
//! request  keys LAYER HEAD TOKENS DIM\n   then TOKENS * DIM numbers, f32 in little endian ("values" likewise)
//! answer   BYTES\n                        then as many numbers: what its codec gives back
//! ```
//!
//! BYTES is what the codec would store for these tokens, which are consecutive tokens of one KV head: a group of
//! [`GROUP`], so codes by token, by channel and by group can all be tried, or the first 1 to 31 of a group that still
//! grows. Such a part is asked for anew with every token that joins it, for the query of one position, and the answer
//! to the full group is final. `tqkv.yardstick` of the Python package is the other end.

use std::io::{BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;
use tqkv_core::KvShape;

use crate::answer::answer;

/// Number of tokens of a full group.
pub const GROUP: usize = 32;

/// Names of the two kinds of vectors in a request.
const SIDES: [&str; 2] = ["keys", "values"];

/// Attention of a model over what another program's codec gives back.
///
/// The first tokens and the newest ones stay exact, as in the caches it is compared with. Every query sees all others
/// as the codec gives them back, in groups of [`GROUP`] tokens, of which the youngest may have fewer. So the program is
/// asked once per token, KV head and kind of vector, for 16.5 tokens on average, and a codec by channel also stores the
/// steps of groups that have few tokens. `allocated_bytes` counts each group once, as it was asked for last.
#[derive(Debug)]
pub struct ProgramCache {
    dense: DenseCache,
    program: Program,
    /// Number of first tokens, and of newest ones, that stay exact.
    exact: (usize, usize),
    layers: Vec<Layer>,
}

/// What passed through the program, and what is going to.
#[derive(Debug, Clone)]
struct Layer {
    /// First token of the group that grows. Those before it are exact first ones, or came back in full groups.
    start: usize,
    /// Keys and values from `start` on as they came, per KV head. The exact cache has them as queries see them.
    given: Vec<[Vec<f32>; 2]>,
    /// First token and bytes of each full group.
    groups: Vec<(usize, usize)>,
    /// Tokens and bytes of the group that grows, as far as it has passed through the program.
    part: (usize, usize),
}

impl Layer {
    fn new(sinks: usize, heads: usize) -> Self {
        Self { start: sinks, given: vec![Default::default(); heads], groups: Vec::new(), part: (0, 0) }
    }

    /// Adds tokens as they came, `[n, num_kv_heads, dim]`.
    fn push(&mut self, tokens: [&[f32]; 2], dims: [usize; 2]) {
        let heads = self.given.len();
        for ((side, rows), dim) in tokens.into_iter().enumerate().zip(dims) {
            for (i, row) in rows.chunks_exact(dim).enumerate() {
                self.given[i % heads][side].extend_from_slice(row);
            }
        }
    }

    /// Forgets all but the first tokens since `start`.
    fn keep(&mut self, tokens: usize, dims: [usize; 2]) {
        for given in &mut self.given {
            given.iter_mut().zip(dims).for_each(|(rows, dim)| rows.truncate(tokens.saturating_mul(dim)));
        }
    }

    /// The group that grows has got all its tokens.
    fn close(&mut self, dims: [usize; 2]) {
        self.groups.push((self.start, self.part.1));
        self.start += GROUP;
        self.part = (0, 0);
        for given in &mut self.given {
            given.iter_mut().zip(dims).for_each(|(rows, dim)| drop(rows.drain(..GROUP * dim)));
        }
    }

    fn bytes(&self) -> usize {
        self.groups.iter().fold(self.part.1, |sum, group| sum.saturating_add(group.1))
    }
}

impl ProgramCache {
    /// An empty cache for the attention of `spec`, whose sinks and hot tokens stay exact, and a started program.
    ///
    /// # Errors
    /// An attention that no cache computes, latent vectors, or a program that does not start.
    pub fn new(spec: &CacheSpec, command: &[String]) -> Result<Self, CacheError> {
        if spec.position_dim > 0 {
            let why =
                "a codec of another program takes keys and values: expected a model without latent vectors";
            return Err(CacheError::BadSpec(why.into()));
        }
        let dense = DenseCache::new(spec)?;
        let program = Program::start(command)?;
        let layers = vec![Layer::new(spec.sinks, spec.shape.num_kv_heads); spec.shape.num_layers];
        Ok(Self { dense, program, exact: (spec.sinks, spec.hot), layers })
    }

    /// Head dims of keys and of values.
    fn dims(&self) -> [usize; 2] {
        let KvShape { head_dim, value_dim, .. } = self.dense.shape();
        [head_dim, value_dim]
    }

    fn tokens(&self, layer: usize) -> usize {
        self.dense.keys(layer, 0).map_or(0, |keys| keys.len() / self.dense.shape().head_dim)
    }

    /// Attends with tokens that all see the same tokens exact: those of which none sees a coded token, or one.
    fn attend(
        &mut self,
        layer: usize,
        q: &[f32],
        [k, v]: [&[f32]; 2],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let (dims, heads) = (self.dims(), self.dense.shape().num_kv_heads);
        let (before, n) = (self.tokens(layer), k.len() / (heads * dims[0]));
        let Layer { start, .. } = self.layers[layer];
        // Exact first tokens are in no group.
        let first = start.saturating_sub(before).min(n) * heads;
        let held = before.saturating_sub(start);
        self.layers[layer].push([&k[first * dims[0]..], &v[first * dims[1]..]], dims);
        let (mut k, mut v) = (k.to_vec(), v.to_vec());
        let coded = (before + n).saturating_sub(start.saturating_add(self.exact.1));
        let attended = self
            .code(layer, coded, [&mut k, &mut v])
            .and_then(|()| self.dense.attend_chunk(layer, q, &k, &v, out));
        if attended.is_err() {
            self.layers[layer].keep(held, dims);
        } else if coded == GROUP {
            self.layers[layer].close(dims);
        }
        attended
    }

    /// Passes the first tokens of the group that grows through the program. `own` are the keys and the values of the
    /// token that comes, `[num_kv_heads, dim]`.
    fn code(&mut self, layer: usize, coded: usize, own: [&mut [f32]; 2]) -> Result<(), CacheError> {
        if coded == 0 {
            return Ok(());
        }
        let (dims, start) = (self.dims(), self.layers[layer].start);
        // Without a window the token that comes is one of them, and the exact cache does not have it yet.
        let held = coded.min(self.tokens(layer) - start);
        let [own_keys, own_values] = own;
        let mut bytes = 0usize;
        for head in 0..self.layers[layer].given.len() {
            let given = &self.layers[layer].given[head];
            let mut back = [0, 1].map(|side| given[side][..coded * dims[side]].to_vec());
            for (side, rows) in back.iter_mut().enumerate() {
                bytes = bytes.saturating_add(self.program.ask(side, (layer, head), rows, dims[side])?);
            }
            let [(keys, key), (values, value)] = [0, 1].map(|side| back[side].split_at(held * dims[side]));
            self.dense.replace((layer, head), start, keys, values)?;
            own_keys[head * dims[0]..][..key.len()].copy_from_slice(key);
            own_values[head * dims[1]..][..value.len()].copy_from_slice(value);
        }
        self.layers[layer].part = (coded, bytes);
        Ok(())
    }
}

impl AttentionCache for ProgramCache {
    fn shape(&self) -> KvShape {
        self.dense.shape()
    }

    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let shape = self.dense.shape();
        let KvShape { num_kv_heads, head_dim, value_dim, num_layers, .. } = shape;
        let (keys, values) = (num_kv_heads * head_dim, num_kv_heads * value_dim);
        let (queries, outs) = (shape.query_values(), shape.out_values());
        let n = k.len() / keys;
        let fits = k.len() == n * keys && v.len() == n * values && q.len() == n * queries;
        let is_finite = k.iter().chain(v).all(|x| x.is_finite());
        if layer >= num_layers || !fits || out.len() != n * outs || !is_finite {
            // The check of the exact cache says what is wrong.
            return self.dense.attend_chunk(layer, q, k, v, out);
        }
        let mut at = 0;
        while at < n {
            // As long as no query sees a coded token, all that is there goes at once; from then on a token at a time.
            let exact = self.layers[layer].start.saturating_add(self.exact.1);
            let end = n.min(at + exact.saturating_sub(self.tokens(layer)).max(1));
            let kv = [&k[at * keys..end * keys], &v[at * values..end * values]];
            self.attend(layer, &q[at * queries..end * queries], kv, &mut out[at * outs..end * outs])?;
            at = end;
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.dense.len()
    }

    /// Tokens of full groups stay as the program gave them back, and the next group begins after the last of them that
    /// is left. Those of the group that grows are again as they came, until the next query passes them through the
    /// program. A group counts its bytes as long as one of its tokens is there.
    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        let (dims, sinks) = (self.dims(), self.exact.0);
        self.dense.truncate(len)?;
        for (layer, state) in self.layers.iter_mut().enumerate() {
            state.keep(len.saturating_sub(state.start), dims);
            state.groups.retain(|group| group.0 < len);
            state.part = (0, 0);
            for (head, [keys, values]) in state.given.iter().enumerate() {
                if !keys.is_empty() {
                    self.dense.replace((layer, head), state.start, keys, values)?;
                }
            }
            state.start = state.start.min(len.max(sinks));
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.dense.reset();
        let heads = self.dense.shape().num_kv_heads;
        self.layers.fill(Layer::new(self.exact.0, heads));
    }

    /// What the program says that its codes take, and two bytes per number of the exact tokens.
    fn allocated_bytes(&self) -> usize {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.dense.shape();
        let sizes = self.layers.iter().enumerate().map(|(layer, state)| {
            let coded = state.start - self.exact.0 + state.part.0;
            let exact = self.tokens(layer).saturating_sub(coded);
            state.bytes().saturating_add(exact * 2 * num_kv_heads * (head_dim + value_dim))
        });
        sizes.fold(0, usize::saturating_add)
    }
}

/// The running program. It ends with its cache.
#[derive(Debug)]
struct Program {
    name: String,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Program {
    fn start(command: &[String]) -> Result<Self, CacheError> {
        let name = command.join(" ");
        let refused = |why: &dyn std::fmt::Display| CacheError::BadSpec(format!("program '{name}': {why}"));
        let (first, rest) =
            command.split_first().ok_or_else(|| refused(&"no command: expected program=COMMAND"))?;
        let child = Command::new(first).args(rest).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| refused(&error))?;
        let (to, from) =
            child.stdin.take().zip(child.stdout.take()).ok_or_else(|| refused(&"it has no pipes"))?;
        Ok(Self { name, child, to, from: BufReader::new(from) })
    }

    /// Replaces rows of one KV head by what the codec gives back. Returns the bytes of their codes.
    fn ask(
        &mut self,
        side: usize,
        (layer, head): (usize, usize),
        rows: &mut [f32],
        dim: usize,
    ) -> Result<usize, CacheError> {
        let request = format!("{} {layer} {head} {} {dim}\n", SIDES[side], rows.len() / dim);
        let mut bytes = request.into_bytes();
        bytes.extend(rows.iter().flat_map(|x| x.to_le_bytes()));
        let sent = self.to.write_all(&bytes).and_then(|()| self.to.flush());
        let answered = sent.map_err(|error| format!("no full answer: {error}"));
        answered.and_then(|()| answer(&mut self.from, rows)).map_err(|why| {
            let what = format!("{} of layer {layer}, KV head {head}", SIDES[side]);
            CacheError::Encode(format!("program '{}', {what}: {why}", self.name))
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may wait for a request; nothing that it holds is of use to anyone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Reads a request and answers with its own numbers, in half of their bytes.
    const SAME: &str =
        "while read side layer head n dim; do echo $((2 * n * dim)); head -c $((4 * n * dim)); done";
    /// Answers with zeros.
    const ZEROS: &str = "while read side layer head n dim; do head -c $((4 * n * dim)) >/dev/null; \
                         echo 0; head -c $((4 * n * dim)) /dev/zero; done";
    /// Answers with its own numbers or with zeros, by the number of tokens and the KV head, and a byte per token.
    const BY_TOKENS: &str = "while read side layer head n dim; do echo $n; \
        if [ $(((n + head) % 3)) = 0 ]; then head -c $((4 * n * dim)) >/dev/null; \
        head -c $((4 * n * dim)) /dev/zero; else head -c $((4 * n * dim)); fi; done";

    /// A cache of 2 layers of 2 query heads and of KV heads of dim 16.
    fn cache(script: &str, [kv_heads, sinks, hot]: [usize; 3]) -> Result<ProgramCache, CacheError> {
        let spec = CacheSpec { sinks, hot, ..CacheSpec::new(2, 2, kv_heads, 16) };
        ProgramCache::new(&spec, &["sh", "-c", script].map(str::to_owned))
    }

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect()
    }

    /// Attends with the tokens from the length of the cache on, in chunks of these sizes. Returns the outputs of layer 1.
    fn run(cache: &mut dyn AttentionCache, chunks: &[usize]) -> Result<Vec<f32>, CacheError> {
        let width = cache.shape().num_kv_heads * 16;
        let mut outputs = Vec::new();
        for &n in chunks {
            let at = cache.len();
            let of =
                |width: usize, seed: usize| numbers(400 * width, seed)[at * width..][..n * width].to_vec();
            for layer in 0..2 {
                let mut out = vec![0.0; n * 32];
                let (q, k, v) = (of(32, 1), of(width, layer + 7), of(width, layer + 9));
                cache.attend_chunk(layer, &q, &k, &v, &mut out)?;
                if layer == 1 {
                    outputs.extend(out);
                }
            }
        }
        Ok(outputs)
    }

    fn assert_near(got: &[f32], expected: &[f32]) {
        let far = got.iter().zip(expected).position(|(a, b)| (a - b).abs() > 1e-5);
        assert_eq!((far.map(|at| at / 32), got.len()), (None, expected.len()), "a query sees something else");
    }

    #[test]
    fn no_query_sees_an_exact_token_without_window_and_sinks() {
        for chunks in [&[70, 30][..], &[31, 1, 1, 1, 66]] {
            let mut zeros = cache(ZEROS, [1, 0, 0]).unwrap();
            let out = run(&mut zeros, chunks).unwrap();
            let at = out.iter().position(|x| *x != 0.0);
            assert_eq!(at.map(|at| at / 32), None, "a query sees an exact value");
            assert!(
                [zeros.dense.keys(1, 0), zeros.dense.values(1, 0)]
                    .iter()
                    .all(|rows| rows.unwrap().iter().all(|x| *x == 0.0))
            );
            // In the middle of the group that grows, of a full one, and after both.
            for len in [98, 80, 32] {
                zeros.truncate(len).unwrap();
                let out = run(&mut zeros, &[2, 3]).unwrap();
                assert!(out.iter().all(|x| *x == 0.0), "after {len} tokens");
                assert_eq!(zeros.len(), len + 5);
            }
        }
    }

    /// The answers are those of a computation that asks for nothing twice: what each query sees is put together anew.
    #[test]
    fn each_query_sees_the_group_so_far_and_chunks_make_no_difference() {
        for settings in [[1, 0, 0], [2, 0, 0], [2, 3, 5], [1, 2, 40]] {
            let mut one = cache(BY_TOKENS, settings).unwrap();
            let expected = seen_anew(settings, 80);
            assert_near(&run(&mut one, &[1; 80]).unwrap(), &expected);
            let mut many = cache(BY_TOKENS, settings).unwrap();
            assert_near(&run(&mut many, &[3, 50, 27]).unwrap(), &expected);
            assert_eq!(one.allocated_bytes(), many.allocated_bytes());
            let [kv_heads, sinks, hot] = settings;
            let coded = 80 - sinks - hot;
            assert_eq!(many.allocated_bytes(), 2 * 2 * kv_heads * (coded + (80 - coded) * 2 * 16));
            // What goes comes back as it was, as long as no full group is cut or enters the window.
            let len = coded / GROUP * GROUP + sinks + hot + 1;
            many.truncate(len).unwrap();
            assert_near(&run(&mut many, &[80 - len]).unwrap(), &expected[len * 32..]);
            assert_eq!(one.allocated_bytes(), many.allocated_bytes());
        }
    }

    /// Outputs of layer 1 over what `BY_TOKENS` gives back, with an exact cache per query.
    fn seen_anew([kv_heads, sinks, hot]: [usize; 3], tokens: usize) -> Vec<f32> {
        let mut outputs = Vec::new();
        for n in 1..=tokens {
            let width = kv_heads * 16;
            let of = |width: usize, seed: usize| numbers(400 * width, seed)[..n * width].to_vec();
            let (mut k, mut v) = (of(width, 8), of(width, 10));
            for token in sinks..n.saturating_sub(hot).max(sinks) {
                let first = (token - sinks) / GROUP * GROUP + sinks;
                let group = GROUP.min(n - hot - first);
                for head in (0..kv_heads).filter(|head| (group + head).is_multiple_of(3)) {
                    let at = token * width + head * 16;
                    k[at..at + 16].fill(0.0);
                    v[at..at + 16].fill(0.0);
                }
            }
            let mut exact = DenseCache::new(&CacheSpec::new(1, 2, kv_heads, 16)).unwrap();
            let mut out = vec![0.0; n * 32];
            exact.attend_chunk(0, &of(32, 1), &k, &v, &mut out).unwrap();
            outputs.extend_from_slice(&out[(n - 1) * 32..]);
        }
        outputs
    }

    #[test]
    fn a_program_gets_the_tokens_behind_the_window_and_names_their_bytes() {
        let mut exact = DenseCache::new(&CacheSpec::new(2, 2, 1, 16)).unwrap();
        let expected = run(&mut exact, &[70, 30]).unwrap();
        let mut same = cache(SAME, [1, 2, 8]).unwrap();
        assert_near(&run(&mut same, &[70, 30]).unwrap(), &expected);
        // Of 100 tokens 2 and 8 stay exact. Two groups of the other 90 are full, the third has 26 tokens.
        assert_eq!((same.layers[0].start, same.layers[1].part), (66, (26, 2 * 26 * 32)));
        assert_eq!(same.allocated_bytes(), 2 * 100 * 2 * 32);
        let mut zeros = cache(ZEROS, [1, 2, 8]).unwrap();
        run(&mut zeros, &[70, 30]).unwrap();
        let (keys, first) = (zeros.dense.keys(1, 0).unwrap(), exact.keys(1, 0).unwrap());
        assert!(keys[2 * 16..92 * 16].iter().all(|x| *x == 0.0));
        assert_eq!((&keys[..32], &keys[92 * 16..]), (&first[..32], &first[92 * 16..]));
    }

    #[test]
    fn truncation_keeps_full_groups_and_returns_the_tokens_of_the_other() {
        let mut exact = DenseCache::new(&CacheSpec::new(2, 2, 1, 16)).unwrap();
        run(&mut exact, &[100]).unwrap();
        let first = exact.keys(1, 0).unwrap();
        let mut zeros = cache(ZEROS, [1, 2, 8]).unwrap();
        run(&mut zeros, &[70, 30]).unwrap();
        let starts = |cache: &ProgramCache| (cache.layers[0].start, cache.layers[1].start, cache.len());
        zeros.truncate(80).unwrap();
        assert_eq!(starts(&zeros), (66, 66, 80));
        assert_eq!(zeros.dense.keys(1, 0).unwrap()[66 * 16..], first[66 * 16..80 * 16]);
        assert_eq!(zeros.allocated_bytes(), 2 * 16 * 2 * 32);
        zeros.truncate(50).unwrap();
        assert_eq!(starts(&zeros), (50, 50, 50));
        assert!(zeros.dense.keys(1, 0).unwrap()[2 * 16..].iter().all(|x| *x == 0.0));
        // The group that was cut keeps its bytes, the next has 16 tokens of 26.
        let mut same = cache(SAME, [1, 2, 8]).unwrap();
        run(&mut same, &[100]).unwrap();
        same.truncate(50).unwrap();
        run(&mut same, &[34]).unwrap();
        assert_eq!((starts(&same).0, same.layers[0].groups.len()), (50, 2));
        assert_eq!(same.allocated_bytes(), 2 * (64 + 26 + 10) * 2 * 32);
        same.truncate(1).unwrap();
        assert_eq!((starts(&same), same.allocated_bytes()), ((2, 2, 1), 2 * 2 * 32));
        same.reset();
        assert_eq!((same.len(), same.allocated_bytes()), (0, 0));
    }

    #[test]
    fn what_a_program_does_wrong_is_said() {
        let nan = "read a; head -c 64 >/dev/null; echo 1; head -c 64 /dev/zero | tr '\\0' '\\377'";
        let many = "while read side layer head n dim; do head -c $((4 * n * dim)) >/dev/null; \
                    echo 18446744073709551615; head -c $((4 * n * dim)) /dev/zero; done";
        let mut most = cache(many, [1, 2, 8]).unwrap();
        run(&mut most, &[100]).unwrap();
        assert_eq!(most.allocated_bytes(), usize::MAX);
        for (script, expected) in [
            ("exit 3", "no full answer"),
            ("read a; echo hello; sleep 9", "answered 'hello': expected a number of bytes and a new line"),
            ("read a; echo 12; echo short", "no full answer"),
            (nan, "answered NaN at number 0: expected finite numbers"),
        ] {
            let mut refused = cache(script, [1, 2, 8]).unwrap();
            let error = run(&mut refused, &[100]).unwrap_err().to_string();
            assert!(
                error.contains("keys of layer 0, KV head 0") && error.contains(expected),
                "{script}: {error}"
            );
            assert_eq!((refused.len(), refused.layers[0].given[0][1].len()), (10, 8 * 16), "{script}");
        }
        let spec = CacheSpec::new(1, 1, 1, 16);
        let missing = ProgramCache::new(&spec, &["/nowhere/codec".to_owned()]).unwrap_err().to_string();
        assert!(missing.contains("program '/nowhere/codec'"), "{missing}");
        assert!(ProgramCache::new(&spec, &[]).unwrap_err().to_string().contains("no command"));
        // The exact cache says what is wrong with tokens, before the program sees them.
        let error = most.attend_chunk(0, &[0.0; 32], &[f32::NAN; 16], &[0.0; 16], &mut [0.0; 32]);
        assert!(error.unwrap_err().to_string().contains("values must be finite"));
    }
}
