//! Saved states of llama.cpp at a quarter of their bytes and less.
//!
//! llama.cpp saves the KV cache of a sequence as it is: 128 KB per token for a model of 8B. [`pack()`] finds
//! the rows of keys and values in such a state, codes them head by head, and keeps all other bytes as they
//! are. [`unpack()`] gives a state that the same engine loads.
//!
//! ```
//! use std::fs::File;
//! use std::io::BufReader;
//! use tqkv_session::{Codecs, Mode, pack, unpack};
//! use tqkv_simd::Level;
//!
//! # let temporary = tempfile::tempdir()?;
//! # let folder = temporary.path();
//! # let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
//! # let mut state = words(&[0x6767_7371, 3, 0, 1, 200]);
//! # (0..200).for_each(|position| state.extend(words(&[position, 1, 0])));
//! # state.extend(words(&[0, 1]));
//! # for _ in ["keys", "values"] {
//! #     state.extend(words(&[1, 256, 0]));
//! #     state.extend((0..200 * 128).flat_map(|i| half::f16::from_f32((i as f32 * 0.37).sin()).to_le_bytes()));
//! # }
//! # std::fs::write(folder.join("chat.bin"), state)?;
//! let level = Level::detect()?;
//! let mut state = BufReader::new(File::open(folder.join("chat.bin"))?); // of `llama_state_seq_save_file`
//! let mut out = File::create(folder.join("chat.tqs"))?;
//! let sizes = pack(&mut state, &mut out, Mode::Coded(Codecs::DEFAULT), level)?;
//! assert!(sizes.pack < sizes.state / 3);
//!
//! let mut packed = BufReader::new(File::open(folder.join("chat.tqs"))?);
//! unpack(&mut packed, &mut File::create(folder.join("again.bin"))?, None, level)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//! state --Layout::read--> caches, layers, rows
//!       --pack----------> map | zstd of what stays | blocks of rows, 64 cells per chunk    (SPEC.md)
//!       <--unpack-------
//! ```
//!
//! | part | file |
//! | --- | --- |
//! | what a state holds, and where | [`Layout`], [`Cache`], [`StateRows`] |
//! | state to pack | [`pack()`], [`Mode`], [`Codecs`], [`RowHeads`], [`BasisCoder`] |
//! | pack to state, checks | [`unpack()`], [`inspect`] |
//!
//! Both directions hold some 8 MiB of rows at a time. Not for a live cache, and not for caches of other
//! engines: LMCache has a serde in `tqkv`'s Python package.
#![forbid(unsafe_code)]

mod based;
mod cache;
mod container;
mod error;
mod grid;
mod layout;
mod numbers;
mod pack;
mod plain;
mod slab;
mod source;
mod stored;
mod tile;
mod unpack;

pub use cache::{Cache, EXACT_TOKENS, StateRows, StateSide};
pub use container::{Class, MAGIC, VERSION};
pub use error::SessionError;
pub use layout::{Layout, Origin};
pub use numbers::Numbers;
pub use pack::{Codecs, Mode, RowHeads, Sizes, pack};
pub use stored::BasisCoder;
pub use tqkv_storage::{Basis, BasisId, Budget, StorageCodec, StorageError};
pub use unpack::{Group, Summary, inspect, unpack};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
