//! A file of encoded vectors: written in one pass, read front to back, and one by one through a memory map.
//!
//! `cargo run --release -p tqkv --example codes_file`

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use tqkv::file::{Header, Reader, TqkView, Writer};
use tqkv::{AnyCodec, CodecId, Options};

const DIM: usize = 128;
const COUNT: usize = 5000;

/// A smooth vector, different for every index.
fn vector(index: usize) -> Vec<f32> {
    (0..DIM).map(|i| ((index * 7 + i * 13) as f32 * 0.01).sin()).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("keys.tqk");

    // Written next to the target and renamed by `commit`, so a program that stops leaves no half file.
    let codec = AnyCodec::new(CodecId::T3, DIM, Options::default())?;
    let mut writer = Writer::create(&path, Header::new(&codec, None))?;
    let mut block = vec![0; codec.block_bytes()];
    for index in 0..COUNT {
        codec.encode(&vector(index), &mut block)?;
        writer.push(&block)?;
    }
    let count = writer.commit()?;
    println!("{count} vectors in {} bytes, {} as f32", path.metadata()?.len(), COUNT * DIM * 4);

    // Front to back. The header says which codec decodes; each chunk is checked by its CRC first.
    let mut reader = Reader::new(BufReader::new(File::open(&path)?))?;
    let codec = reader.header().codec()?;
    let (mut decoded, mut index, mut error, mut energy) = (vec![0.0; DIM], 0, 0.0, 0.0);
    while let Some(chunk) = reader.next_chunk()? {
        for block in chunk.chunks_exact(codec.block_bytes()) {
            codec.decode(block, &mut decoded)?;
            for (x, y) in vector(index).iter().zip(&decoded) {
                error += f64::from(x - y).powi(2);
                energy += f64::from(*x).powi(2);
            }
            index += 1;
        }
    }
    println!("relative squared error {:.4}", error / energy);

    // One vector, wherever it is: only its chunk is read.
    let view = TqkView::open(&path)?;
    codec.decode(view.block(4321)?, &mut decoded)?;
    println!("vector 4321 begins {:.3?}, was {:.3?}", &decoded[..4], &vector(4321)[..4]);
    Ok(())
}
