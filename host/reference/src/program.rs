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

use crate::answer::answer;
use crate::source::Source;
use std::io::{BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tqkv::error::CacheError;

/// Number of tokens of a full group.
pub const GROUP: usize = 32;

/// Names of the two kinds of vectors in a request.
const SIDES: [&str; 2] = ["keys", "values"];

/// The running program. It ends with its cache.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(command: &[String]) -> Result<Self, CacheError> {
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
}

impl Source for Program {
    fn group(&self) -> usize {
        GROUP
    }

    fn pass(
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
