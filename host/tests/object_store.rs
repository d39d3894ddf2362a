//! `.tqk` files and snapshots in stores of objects: memory, and a folder.
// A separate binary, because it needs a feature.

use async_trait::async_trait;
use futures_core::stream::BoxStream;
use pollster::block_on;
use std::fmt;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tqkv::cache::{CacheSpec, KvCache};
use tqkv::file::{FileError, Header, TqkObject, TqkView, Writer, put_object};
use tqkv::object_store::local::LocalFileSystem;
use tqkv::object_store::memory::InMemory;
use tqkv::object_store::path::Path;
use tqkv::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tqkv_core::{AnyCodec, CodecId, MAX_HEAD_DIM, Options};

const DIM: usize = 64;

/// A store that counts fetches, and may refuse the second part of an upload.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn ObjectStore>,
    requests: AtomicU64,
    fetched: AtomicU64,
    refuses_parts: bool,
}

impl Watched {
    fn new(inner: impl ObjectStore) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(inner),
            requests: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            refuses_parts: false,
        })
    }

    /// Requests and bytes since the last call.
    fn cost(&self) -> (u64, u64) {
        (self.requests.swap(0, Ordering::Relaxed), self.fetched.swap(0, Ordering::Relaxed))
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.inner.get_opts(at, options).await?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.fetched.fetch_add(found.range.end - found.range.start, Ordering::Relaxed);
        Ok(found)
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(at, options).await?;
        Ok(if self.refuses_parts { Box::new(Refusing { upload, sent: 0 }) } else { upload })
    }

    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(at, payload, options).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct Refusing {
    upload: Box<dyn MultipartUpload>,
    sent: usize,
}

#[async_trait]
impl MultipartUpload for Refusing {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.sent += 1;
        if self.sent == 1 {
            return self.upload.put_part(data);
        }
        Box::pin(async { Err(Error::Generic { store: "Refusing", source: "no room".into() }) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

/// A file of 10,000 blocks in chunks of 300 blocks.
fn file() -> Vec<u8> {
    let codec = AnyCodec::new(CodecId::S4, DIM, Options::default()).unwrap();
    let header = Header { blocks_per_chunk: 300, ..Header::new(&codec, Some(vec![0.5; DIM])) };
    let mut writer = Writer::new(Cursor::new(Vec::new()), header).unwrap();
    for index in 0..10_000_u32 {
        let block: Vec<u8> = (0..codec.block_bytes() as u32).map(|i| (index * 7 + i) as u8).collect();
        writer.push(&block).unwrap();
    }
    writer.finish().unwrap().0.into_inner()
}

#[test]
fn blocks_come_by_range_and_only_their_chunks_are_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, path) = (file(), Path::from("a/keys.tqk"));
    let view = TqkView::new(&bytes).unwrap();
    let size = view.block_bytes();
    let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    for store in [Watched::new(InMemory::new()), Watched::new(local)] {
        block_on(put_object(&*store, &path, bytes.clone())).unwrap();
        let object = block_on(TqkObject::open(store.clone(), path.clone())).unwrap();
        assert_eq!((object.header(), object.block_bytes()), (view.header(), size));
        let (requests, fetched) = store.cost();
        assert!(requests == 1 && fetched < 4200, "{requests} requests, {fetched} bytes to open");
        for (range, chunks) in [
            (0..300, 1),
            (0..1, 1),
            (299..301, 2),
            (450..451, 1),
            (600..1500, 3),
            (9899..9901, 2),
            (9900..10_000, 1),
            (0..10_000, 34),
            (77..77, 0),
        ] {
            let blocks = block_on(object.blocks(range.clone())).unwrap();
            let expected: Vec<u8> = range.clone().flat_map(|i| view.block(i).unwrap().to_vec()).collect();
            assert_eq!(blocks, expected, "{range:?} of {store}");
            let (requests, fetched) = store.cost();
            assert_eq!(requests, u64::from(chunks > 0), "{range:?}");
            assert!(fetched <= chunks * (16 + 300 * size as u64), "{range:?}: {fetched} bytes");
        }
        for range in [0..10_001, 10_001..10_001, 10_000..u64::MAX] {
            let error = block_on(object.blocks(range.clone())).unwrap_err();
            assert!(matches!(error, FileError::OutOfBounds { .. }), "{range:?}: {error}");
        }
    }
}

#[test]
fn the_longest_header_comes_in_one_request() {
    let (store, path) = (Watched::new(InMemory::new()), Path::from("wide.tqk"));
    let codec = AnyCodec::new(CodecId::S2, MAX_HEAD_DIM, Options::default()).unwrap();
    let header = Header::new(&codec, Some(vec![-1.5; MAX_HEAD_DIM]));
    let mut writer = Writer::new(Cursor::new(Vec::new()), header).unwrap();
    writer.push(&vec![7; codec.block_bytes()]).unwrap();
    let bytes = writer.finish().unwrap().0.into_inner();
    block_on(put_object(&*store, &path, bytes)).unwrap();
    let object = block_on(TqkObject::open(store.clone(), path)).unwrap();
    assert_eq!(store.cost().0, 1);
    assert_eq!(object.header().mean.as_deref(), Some(&[-1.5; MAX_HEAD_DIM][..]));
    assert_eq!(block_on(object.blocks(0..1)).unwrap(), vec![7; codec.block_bytes()]);
}

#[test]
fn whatever_is_wrong_with_an_object_is_said() {
    let (store, path, bytes) = (Arc::new(InMemory::new()), Path::from("keys.tqk"), file());
    let open = |bytes: &[u8]| {
        block_on(put_object(&*store, &path, bytes.to_vec())).unwrap();
        block_on(TqkObject::open(store.clone(), path.clone()))
    };
    let missing = block_on(TqkObject::open(store.clone(), Path::from("gone"))).unwrap_err();
    assert!(matches!(missing, FileError::Io(_)) && missing.to_string().contains("gone"), "{missing}");
    // The store refuses an empty range of an empty object.
    open(&[]).unwrap_err();
    for cut in [20, 200, bytes.len() - 1] {
        let error = open(&bytes[..cut]).unwrap_err();
        assert!(
            !matches!(error, FileError::Io(_)) && error.to_string().contains("missing"),
            "{cut} bytes: {error}"
        );
    }
    let error = open(&[&bytes[..], &[0]].concat()).unwrap_err();
    assert!(matches!(error, FileError::TrailingBytes(10_000)), "{error}");
    assert!(matches!(
        open(b"no such file, though it is long enough for a header").unwrap_err(),
        FileError::BadMagic
    ));

    let mut damaged = bytes.clone();
    // A byte in the second chunk.
    let at = bytes.len() / 34 * 3 / 2;
    damaged[at] ^= 1;
    let object = open(&damaged).unwrap();
    assert!(matches!(block_on(object.blocks(299..301)).unwrap_err(), FileError::ChunkCrc(1)));
    block_on(object.blocks(600..900)).unwrap();

    let object = open(&bytes).unwrap();
    open(&damaged).unwrap();
    let replaced = block_on(object.blocks(600..900)).unwrap_err().to_string();
    assert_eq!(replaced, "keys.tqk was replaced since it was opened");
    block_on(store.delete(&path)).unwrap();
    block_on(object.blocks(0..1)).unwrap_err();
}

#[test]
fn large_objects_go_in_parts_and_a_failed_one_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = Path::from("large");
    let local = || LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let bytes: Vec<u8> = (0..40_000_000_u32).map(|i| (i % 251) as u8).collect();
    let refusing = Watched { refuses_parts: true, ..Arc::into_inner(Watched::new(local())).unwrap() };
    let error = block_on(put_object(&refusing, &path, bytes.clone())).unwrap_err();
    assert!(error.to_string().contains("no room"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    for store in [Arc::new(local()) as Arc<dyn ObjectStore>, Arc::new(InMemory::new())] {
        block_on(put_object(&*store, &path, bytes.clone())).unwrap();
        let found = block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() });
        assert!(found == bytes, "{store}");
    }
}

#[test]
fn a_cache_goes_on_from_an_object_to_the_bit() {
    let spec = CacheSpec::new(2, 4, 2, DIM).codecs(CodecId::T4, CodecId::S3);
    let vectors = |n: usize, salt: usize| -> Vec<f32> {
        (0..n * 2 * DIM).map(|i| ((i * 37 + salt * 101) as f32 * 0.37).sin()).collect()
    };
    let (store, path) = (InMemory::new(), Path::from("sequences/7"));
    let mut cache = KvCache::new(spec.clone()).unwrap();
    for layer in 0..2 {
        cache.append(layer, &vectors(300, layer)[..], &vectors(300, layer + 5)[..]).unwrap();
    }
    block_on(cache.save_object(&store, &path)).unwrap();
    let mut other = KvCache::new(spec.clone()).unwrap();
    block_on(other.restore_object(&store, &path)).unwrap();
    let made = block_on(KvCache::load_object(&store, &path)).unwrap();
    assert_eq!(made.keys(1, 0, 0..300).unwrap(), cache.keys(1, 0, 0..300).unwrap());
    let step = |cache: &mut KvCache| {
        let mut out = vec![0.0; 4 * DIM];
        let q: Vec<f32> = (0..4 * DIM).map(|i| (i as f32 * 0.11).cos()).collect();
        cache.attend_prefill(1, &q, &vectors(1, 9)[..], &vectors(1, 11)[..], &mut out).unwrap();
        out
    };
    assert_eq!(step(&mut cache), step(&mut other));

    let before = other.stats();
    let mut bytes = block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap().to_vec() });
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    block_on(put_object(&store, &path, bytes)).unwrap();
    let error = block_on(other.restore_object(&store, &path)).unwrap_err().to_string();
    assert!(error.contains("damaged") || error.contains("CRC"), "{error}");
    let missing = block_on(other.restore_object(&store, &Path::from("gone"))).unwrap_err().to_string();
    assert!(missing.contains("gone"), "{missing}");
    assert_eq!(format!("{:?}", other.stats()), format!("{before:?}"));
}
