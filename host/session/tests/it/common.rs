//! States written field by field, as llama.cpp's source has them.

use half::{bf16, f16};
use std::io::Cursor;
use tqkv_session::{Codecs, Mode, SessionError, Sizes, StorageCodec};
use tqkv_simd::Level;

pub(crate) fn level() -> Level {
    Level::detect().unwrap()
}

/// Codecs with head dims of 64.
pub(crate) fn codecs(codec: &str) -> Mode<'static> {
    let id = tqkv_core::CodecId::from_name(codec).unwrap();
    Mode::Coded(Codecs { key: id, value: id, key_dim: Some(64), value_dim: Some(64), rows: &[] })
}

pub(crate) fn pack(state: &[u8], mode: Mode) -> Result<(Vec<u8>, Sizes), SessionError> {
    let mut out = Vec::new();
    let sizes = tqkv_session::pack(&mut Cursor::new(state), &mut out, mode, level())?;
    assert_eq!((sizes.state, sizes.pack), (state.len() as u64, out.len() as u64));
    Ok((out, sizes))
}

pub(crate) fn unpack(pack: &[u8]) -> Result<Vec<u8>, SessionError> {
    unpack_with(pack, None)
}

pub(crate) fn unpack_with(pack: &[u8], basis: Option<&StorageCodec>) -> Result<Vec<u8>, SessionError> {
    let mut state = Cursor::new(Vec::new());
    let mut rest = pack;
    let sizes = tqkv_session::unpack(&mut rest, &mut state, basis, level())?;
    assert_eq!(sizes.pack, pack.len() as u64);
    assert_eq!(sizes.state, state.get_ref().len() as u64);
    Ok(state.into_inner())
}

/// ggml's number of a type.
pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 1;
pub(crate) const Q4_0: u32 = 2;
pub(crate) const Q5_1: u32 = 7;
pub(crate) const Q8_0: u32 = 8;
pub(crate) const BF16: u32 = 30;

/// A cache that is written into a state.
#[derive(Clone)]
pub(crate) struct Written {
    /// First position and number of cells of each stream.
    pub(crate) streams: Vec<(u32, u32)>,
    pub(crate) layers: u32,
    pub(crate) width: u32,
    pub(crate) key: u32,
    /// Type of the values; MLA has none.
    pub(crate) value: Option<u32>,
    pub(crate) is_transposed: bool,
    pub(crate) has_extension: bool,
    pub(crate) has_rotation: bool,
    /// Sequences of each cell.
    pub(crate) sequences: u32,
}

impl Default for Written {
    fn default() -> Self {
        Self {
            streams: vec![(0, 150)],
            layers: 3,
            width: 128,
            key: F16,
            value: Some(F16),
            is_transposed: false,
            has_extension: false,
            has_rotation: false,
            sequences: 1,
        }
    }
}

/// A state under construction.
pub(crate) struct State {
    pub(crate) bytes: Vec<u8>,
    random: fastrand::Rng,
}

impl State {
    pub(crate) fn u32(&mut self, field: u32) {
        self.bytes.extend_from_slice(&field.to_le_bytes());
    }

    /// `llama_state_seq_save_file`.
    pub(crate) fn sequence_file(version: u32) -> Self {
        let mut state = Self { bytes: Vec::new(), random: fastrand::Rng::with_seed(7) };
        [0x6767_7371, version, 3, 11, 12, 13].into_iter().for_each(|field| state.u32(field));
        state
    }

    /// `llama_state_seq_get_data`.
    pub(crate) fn sequence_data() -> Self {
        let mut state = Self { bytes: Vec::new(), random: fastrand::Rng::with_seed(8) };
        [0xaf14_3cd8, 2].into_iter().for_each(|field| state.u32(field));
        state
    }

    /// `llama_state_save_file`.
    pub(crate) fn session_file(version: u32) -> Self {
        let mut state = Self { bytes: Vec::new(), random: fastrand::Rng::with_seed(9) };
        [0x6767_736e, version, 1, 11].into_iter().for_each(|field| state.u32(field));
        state.architecture();
        state
    }

    /// `llama_state_get_data`.
    pub(crate) fn context_data() -> Self {
        let mut state = Self { bytes: Vec::new(), random: fastrand::Rng::with_seed(10) };
        state.architecture();
        state
    }

    fn architecture(&mut self) {
        self.u32(5);
        self.bytes.extend_from_slice(b"llama");
    }

    fn number(&mut self) -> f32 {
        (0..6).map(|_| self.random.f32() - 0.5).sum()
    }

    /// So many values of a type; quantised ones with scales that are numbers.
    fn values(&mut self, kind: u32, count: u32) {
        let blocks = |bytes: usize| vec![bytes; count as usize / 32];
        match kind {
            F32 => (0..count).for_each(|_| {
                let x = self.number();
                self.bytes.extend_from_slice(&x.to_le_bytes());
            }),
            F16 => (0..count).for_each(|_| {
                let x = f16::from_f32(self.number());
                self.bytes.extend_from_slice(&x.to_le_bytes());
            }),
            BF16 => (0..count).for_each(|_| {
                let x = bf16::from_f32(self.number());
                self.bytes.extend_from_slice(&x.to_le_bytes());
            }),
            Q8_0 => blocks(32).into_iter().for_each(|codes| self.block(codes)),
            Q4_0 => blocks(16).into_iter().for_each(|codes| self.block(codes)),
            Q5_1 => blocks(22).into_iter().for_each(|codes| self.block(codes)),
            other => panic!("type {other}"),
        }
    }

    fn block(&mut self, codes: usize) {
        self.bytes.extend_from_slice(&f16::from_f32(0.01).to_le_bytes());
        let codes: Vec<u8> = (0..codes).map(|_| self.random.u8(..)).collect();
        self.bytes.extend_from_slice(&codes);
    }

    /// One KV cache.
    pub(crate) fn cache(&mut self, cache: &Written) {
        self.u32(cache.streams.len() as u32);
        for &(first, cells) in &cache.streams {
            self.u32(cells);
            if cells == 0 {
                continue;
            }
            for position in first..first + cells {
                self.u32(position);
                self.u32(cache.sequences);
                if cache.has_extension {
                    [position, position, 5000 + position].into_iter().for_each(|field| self.u32(field));
                }
                (0..cache.sequences).for_each(|sequence| self.u32(sequence));
            }
            self.u32(u32::from(cache.is_transposed));
            self.u32(cache.layers);
            if cache.has_rotation {
                [64, 64].into_iter().for_each(|field| self.u32(field));
            }
            for _ in 0..cache.layers {
                self.matrix(cache.key, cache.width, cells);
            }
            for _ in 0..cache.layers {
                match cache.value {
                    Some(kind) if cache.is_transposed => {
                        let element = if kind == F32 { 4 } else { 2 };
                        [kind, element, cache.width].into_iter().for_each(|field| self.u32(field));
                        self.values(kind, cache.width * cells);
                    }
                    Some(kind) => self.matrix(kind, cache.width, cells),
                    None => {}
                }
            }
        }
    }

    fn matrix(&mut self, kind: u32, width: u32, cells: u32) {
        let row = match kind {
            F32 => width * 4,
            Q8_0 => width / 32 * 34,
            Q4_0 => width / 32 * 18,
            Q5_1 => width / 32 * 24,
            _ => width * 2,
        };
        [kind, row, 0].into_iter().for_each(|field| self.u32(field));
        self.values(kind, width * cells);
    }

    /// One cell of recurrent state, which a hybrid model writes after its caches.
    pub(crate) fn recurrent(&mut self) {
        [1, 149, 0, 0, 2].into_iter().for_each(|field| self.u32(field));
        for _ in 0..4 {
            self.matrix(F32, 256, 1);
        }
    }
}
