//! A codec of another program, which is asked for reconstructions.
//!
//! The program reads requests on its standard input and answers each on its standard output:
//!
//! ```text
//! request  keys LAYER HEAD TOKENS DIM\n   then TOKENS * DIM numbers, f32 in little endian ("values" likewise)
//! answer   BYTES\n                        then as many numbers: what its codec gives back
//! ```
//!
//! BYTES is what the codec would store for these tokens. A request holds [`GROUP`] consecutive tokens of one KV
//! head, so codes by token, by channel and by group can all be tried. Tokens of a head come in order, and each
//! comes once. `tqkv.yardstick` of the Python package is the other end.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;
use tqkv_core::KvShape;

/// Number of tokens of a request.
pub const GROUP: usize = 32;

/// Most bytes of the first line of an answer.
const LINE: u64 = 64;

/// Names of the two kinds of vectors in a request.
const SIDES: [&str; 2] = ["keys", "values"];

/// Attention of a model over what another program's codec gives back.
///
/// The first tokens and the newest ones stay exact, as in the caches it is compared with. Of the others, each
/// group of [`GROUP`] tokens passes through the program when its youngest token leaves the window.
#[derive(Debug)]
pub struct ProgramCache {
    dense: DenseCache,
    program: Program,
    /// Number of first tokens, and of newest ones, that stay exact.
    exact: (usize, usize),
    /// Number of tokens, per layer, that are exact first ones or have passed through the program.
    done: Vec<usize>,
    /// Bytes that the program has named.
    bytes: usize,
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
        let done = vec![0; spec.shape.num_layers];
        Ok(Self { dense, program, exact: (spec.sinks, spec.hot), done, bytes: 0 })
    }

    fn tokens(&self, layer: usize) -> usize {
        self.dense.keys(layer, 0).map_or(0, |keys| keys.len() / self.dense.shape().head_dim)
    }

    /// Passes the groups that have left the window through the program.
    fn settle(&mut self, layer: usize) -> Result<(), CacheError> {
        let (sinks, hot) = self.exact;
        let heads = self.dense.shape().num_kv_heads;
        let tokens = self.tokens(layer);
        let mut from = self.done[layer].max(sinks);
        while from + GROUP + hot <= tokens {
            for head in 0..heads {
                let given = [self.dense.keys(layer, head), self.dense.values(layer, head)];
                let of = |side: usize, dim: usize| {
                    given[side].unwrap_or_default()[from * dim..(from + GROUP) * dim].to_vec()
                };
                let KvShape { head_dim, value_dim, .. } = self.dense.shape();
                let mut both = [of(0, head_dim), of(1, value_dim)];
                for (side, rows) in both.iter_mut().enumerate() {
                    self.bytes += self.program.ask(side, (layer, head), rows)?;
                }
                self.dense.replace((layer, head), from, &both[0], &both[1])?;
            }
            from += GROUP;
        }
        self.done[layer] = from;
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
        let n = k.len() / keys;
        let fits = k.len() == n * keys && v.len() == n * values && q.len() == n * shape.query_values();
        if layer >= num_layers || !fits || out.len() != n * shape.out_values() {
            // The check of the exact cache says what is wrong.
            return self.dense.attend_chunk(layer, q, k, v, out);
        }
        // A part at a time, so that each query sees the tokens as they would be token by token.
        let parts = q.chunks(GROUP * shape.query_values()).zip(out.chunks_mut(GROUP * shape.out_values()));
        for ((q, out), (k, v)) in parts.zip(k.chunks(GROUP * keys).zip(v.chunks(GROUP * values))) {
            self.dense.attend_chunk(layer, q, k, v, out)?;
            self.settle(layer)?;
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.dense.len()
    }

    /// Tokens that passed through the program stay as they are, and the next group begins behind them. The bytes of
    /// dropped tokens are still counted.
    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.done.iter_mut().for_each(|done| *done = len.min(*done));
        self.dense.truncate(len)
    }

    fn reset(&mut self) {
        self.dense.reset();
        self.done.fill(0);
        self.bytes = 0;
    }

    /// What the program says that its codes take, and two bytes per number of the exact tokens.
    fn allocated_bytes(&self) -> usize {
        let KvShape { num_layers, num_kv_heads, head_dim, value_dim, .. } = self.dense.shape();
        let sinks = self.exact.0;
        let coded = |layer: usize| self.done[layer].saturating_sub(sinks);
        let exact: usize = (0..num_layers).map(|layer| self.tokens(layer) - coded(layer)).sum();
        self.bytes + exact * 2 * num_kv_heads * (head_dim + value_dim)
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
    ) -> Result<usize, CacheError> {
        let dim = rows.len() / GROUP;
        let request = format!("{} {layer} {head} {GROUP} {dim}\n", SIDES[side]);
        let mut bytes = request.into_bytes();
        bytes.extend(rows.iter().flat_map(|x| x.to_le_bytes()));
        let answered =
            self.to.write_all(&bytes).and_then(|()| self.to.flush()).and_then(|()| self.answer(rows));
        let what = format!("{} of layer {layer}, KV head {head}", SIDES[side]);
        let refused = |why: String| CacheError::Encode(format!("program '{}', {what}: {why}", self.name));
        let line = answered.map_err(|error| refused(format!("no full answer: {error}")))?;
        let stored = line.trim_end().parse().map_err(|_| {
            refused(format!(
                "answered '{}': expected a number of bytes and a new line",
                line.trim_end().escape_debug()
            ))
        })?;
        match rows.iter().position(|x| !x.is_finite()) {
            None => Ok(stored),
            Some(at) => {
                Err(refused(format!("answered {} at number {at}: expected finite numbers", rows[at])))
            }
        }
    }

    /// Reads the first line of an answer and, if it is a number, the rows.
    fn answer(&mut self, rows: &mut [f32]) -> std::io::Result<String> {
        let mut line = Vec::new();
        (&mut self.from).take(LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(std::io::Error::other("the program ended"));
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.trim_end().parse::<usize>().is_ok() {
            let mut bytes = vec![0; size_of_val(rows)];
            self.from.read_exact(&mut bytes)?;
            let numbers = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
            rows.iter_mut().zip(numbers).for_each(|(row, x)| *row = x);
        }
        Ok(line)
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

    fn cache(script: &str) -> Result<ProgramCache, CacheError> {
        let spec = CacheSpec { sinks: 2, hot: 8, ..CacheSpec::new(2, 2, 1, 16) };
        ProgramCache::new(&spec, &["sh", "-c", script].map(str::to_owned))
    }

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect()
    }

    /// Attends with 100 tokens in two chunks; returns the results of the last chunk.
    fn run(cache: &mut dyn AttentionCache) -> Result<Vec<f32>, CacheError> {
        let mut last = Vec::new();
        for (seed, n) in [(1, 70), (2, 30)] {
            for layer in 0..2 {
                last = vec![0.0; n * 32];
                let (q, k, v) = (numbers(n * 32, seed), numbers(n * 16, seed + 7), numbers(n * 16, seed + 9));
                cache.attend_chunk(layer, &q, &k, &v, &mut last)?;
            }
        }
        Ok(last)
    }

    #[test]
    fn a_program_gets_the_tokens_behind_the_window_and_names_their_bytes() {
        let mut exact = DenseCache::new(&CacheSpec::new(2, 2, 1, 16)).unwrap();
        let expected = run(&mut exact).unwrap();
        let mut same = cache(SAME).unwrap();
        let got = run(&mut same).unwrap();
        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {expected:?}");
        // Of 100 tokens 2 and 8 stay exact; two groups of the other 90 are full.
        assert_eq!(same.done, [66, 66]);
        assert_eq!(same.allocated_bytes(), 2 * (64 * 2 + 36 * 2) * 32);
        let mut zeros = cache(ZEROS).unwrap();
        run(&mut zeros).unwrap();
        let (keys, first) = (zeros.dense.keys(1, 0).unwrap(), exact.keys(1, 0).unwrap());
        assert!(keys[2 * 16..66 * 16].iter().all(|x| *x == 0.0));
        assert_eq!((&keys[..32], &keys[66 * 16..]), (&first[..32], &first[66 * 16..]));
        zeros.truncate(80).unwrap();
        assert_eq!(zeros.done, [66, 66]);
        zeros.truncate(50).unwrap();
        assert_eq!((zeros.done.as_slice(), zeros.len()), (&[50, 50][..], 50));
        zeros.reset();
        assert_eq!((zeros.len(), zeros.allocated_bytes()), (0, 0));
    }

    #[test]
    fn what_a_program_does_wrong_is_said() {
        let nan = "read a; head -c 2048 >/dev/null; echo 1; head -c 2048 /dev/zero | tr '\\0' '\\377'";
        for (script, expected) in [
            ("exit 3", "no full answer"),
            ("read a; echo hello; sleep 9", "answered 'hello': expected a number of bytes and a new line"),
            ("read a; echo 12; echo short", "no full answer"),
            (nan, "answered NaN at number 0: expected finite numbers"),
        ] {
            let error = run(&mut cache(script).unwrap()).unwrap_err().to_string();
            assert!(
                error.contains("keys of layer 0, KV head 0") && error.contains(expected),
                "{script}: {error}"
            );
        }
        let spec = CacheSpec::new(1, 1, 1, 16);
        let missing = ProgramCache::new(&spec, &["/nowhere/codec".to_owned()]).unwrap_err().to_string();
        assert!(missing.contains("program '/nowhere/codec'"), "{missing}");
        assert!(ProgramCache::new(&spec, &[]).unwrap_err().to_string().contains("no command"));
    }
}
