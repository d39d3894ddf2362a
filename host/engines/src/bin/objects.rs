//! Encoded keys and a cache in an object store:
//! `cargo run --release --features objects --bin objects -- URL`.
//!
//! URL names a folder of a store, such as `file:///tmp/folder`, `memory:///` or, with the feature `s3`,
//! `s3://bucket/folder`. A store reads its other settings from environment variables (`AWS_ENDPOINT`,
//! `AWS_ACCESS_KEY_ID`, ..). The program writes 100,000 vectors as a `.tqk` file and reads some of them back
//! by range. It also saves a cache of 8,192 tokens and loads it again.

use anyhow::{Context, Result, ensure};
use std::io::Cursor;
use std::sync::Arc;
use std::time::Instant;
use tqkv::cache::{CacheSpec, KvCache};
use tqkv::file::{Header, TqkObject, Writer, put_object};
use tqkv::object_store::path::Path;
use tqkv::object_store::{ObjectStore, ObjectStoreExt, parse_url_opts};
use tqkv::{AnyCodec, CodecId, Options};
use url::Url;

const DIM: usize = 128;
const VECTORS: usize = 100_000;
/// Tokens per page.
const PAGE: u64 = 128;

fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("usage: objects URL")?;
    let variables = std::env::vars().map(|(name, value)| (name.to_lowercase(), value));
    let (store, folder) = parse_url_opts(&Url::parse(&url)?, variables)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store: Arc<dyn ObjectStore> = Arc::from(store);
        vectors(&store, folder.clone().join("keys.tqk")).await?;
        cache(&*store, folder.join("sequence.tqs")).await
    })
}

/// Uniform numbers.
fn random(count: usize) -> Vec<f32> {
    let mut state = 42_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

async fn vectors(store: &Arc<dyn ObjectStore>, path: Path) -> Result<()> {
    let codec = AnyCodec::new(CodecId::S4, DIM, Options::default())?;
    let mut blocks = vec![0; VECTORS * codec.block_bytes()];
    for (x, block) in random(VECTORS * DIM).chunks(DIM).zip(blocks.chunks_mut(codec.block_bytes())) {
        codec.encode(x, block)?;
    }
    // A page is a chunk, so that it can be fetched alone.
    let header = Header { blocks_per_chunk: PAGE as u32, ..Header::new(&codec, None) };
    let mut writer = Writer::new(Cursor::new(Vec::new()), header)?;
    blocks.chunks(codec.block_bytes()).try_for_each(|block| writer.push(block))?;
    let (file, _) = writer.finish()?;
    let (file, begin) = (file.into_inner(), Instant::now());
    let bytes = file.len();
    put_object(&**store, &path, file).await?;
    println!("{path}: {bytes} bytes written in {:.1} ms", ms(begin));

    let begin = Instant::now();
    let object = TqkObject::open(store.clone(), path).await?;
    println!("opened in {:.1} ms", ms(begin));
    for pages in [1, 16, object.header().count.div_ceil(PAGE)] {
        let range = 0..(pages * PAGE).min(object.header().count);
        let begin = Instant::now();
        let found = object.blocks(range.clone()).await?;
        ensure!(found == blocks[..found.len()], "other blocks came back");
        println!(
            "{pages} pages, {} blocks of {} bytes, in {:.1} ms",
            range.end,
            object.block_bytes(),
            ms(begin)
        );
    }
    Ok(())
}

async fn cache(store: &dyn ObjectStore, path: Path) -> Result<()> {
    let spec = CacheSpec::new(4, 16, 8, DIM).codecs(CodecId::S4, CodecId::S4);
    let (mut cache, tokens) = (KvCache::new(spec)?, random(8192 * 8 * DIM));
    for layer in 0..4 {
        cache.append(layer, &tokens[..], &tokens[..])?;
    }
    let begin = Instant::now();
    cache.save_object(store, &path).await?;
    println!("{path}: {} bytes saved in {:.1} ms", store.head(&path).await?.size, ms(begin));
    let begin = Instant::now();
    let other = KvCache::load_object(store, &path).await?;
    println!("loaded in {:.1} ms", ms(begin));
    let (q, mut a, mut b) = (random(16 * DIM), vec![0.0; 16 * DIM], vec![0.0; 16 * DIM]);
    cache.attend(3, &q, &mut a)?;
    other.attend(3, &q, &mut b)?;
    ensure!(a == b, "the two caches differ");
    println!("both attend to the same bits");
    Ok(())
}

fn ms(begin: Instant) -> f64 {
    1e3 * begin.elapsed().as_secs_f64()
}
