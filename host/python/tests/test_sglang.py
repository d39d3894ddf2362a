"""The storage backend of HiCache, created by SGLang's own factory."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang", reason="sglang is not installed")

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig, HiCacheStorageExtraInfo, PoolName
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

import tqkv
from tqkv.payload import Format, decode
from tqkv.sglang import TqkvHiCache

LAYERS, PAGE, HEADS, DIM, PAGES = 3, 16, 2, 64, 4
SHAPES = {
    "layer_first": (2, LAYERS, PAGES * PAGE, HEADS, DIM),
    "page_first": (2, PAGES * PAGE, LAYERS, HEADS, DIM),
    "page_first_direct": (2, PAGES, LAYERS, PAGE, HEADS, DIM),
    "page_head": (2, PAGES, HEADS, PAGE, LAYERS, DIM),
}


class MHATokenToKVPoolHost:
    """The part of SGLang's host pool that backends use. The class itself does not load without GPU kernels."""

    def __init__(self, layout, dtype=torch.bfloat16):
        self.layout, self.dtype = layout, dtype
        self.layer_num, self.page_size, self.head_num, self.head_dim = LAYERS, PAGE, HEADS, DIM
        self.kv_buffer = torch.randn(SHAPES[layout]).to(dtype)

    def get_data_page(self, index, flat=True):
        if self.layout == "layer_first":
            page = self.kv_buffer[:, :, index : index + PAGE]
        elif self.layout == "page_first":
            page = self.kv_buffer[:, index : index + PAGE]
        else:
            page = self.kv_buffer[:, index // PAGE : index // PAGE + 1]
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self):
        return torch.zeros(2 * LAYERS * PAGE * HEADS * DIM, dtype=self.dtype)

    def page(self, index):
        """Keys and values `[layers, page, heads, head_dim]`."""
        page = self.get_data_page(index, flat=False)
        if self.layout == "page_first":
            return page.transpose(1, 2).unbind(0)
        if self.layout == "page_first_direct":
            return page[:, 0].unbind(0)
        if self.layout == "page_head":
            return page[:, 0].permute(0, 3, 2, 1, 4).unbind(0)
        return page.unbind(0)


def configured(mla=False, tp_rank=0, fields=None, **extra):
    names = {"backend_name": "tqkv", "module_path": "tqkv.sglang", "class_name": "TqkvHiCache"}
    config = HiCacheStorageConfig(
        tp_rank=tp_rank, tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=mla,
        enable_storage_metrics=False, is_page_first_layout=False, model_name="org/model", extra_config={**names, **extra},
    )
    for field, value in (fields or {}).items():
        setattr(config, field, value)
    return config


def backend(pool, **options):
    made = StorageBackendFactory.create_backend("dynamic", configured(**options), pool)
    assert isinstance(made, HiCacheStorage)
    made.register_mem_pool_host(pool)
    return made


def wanted(part, exact):
    """Keys and values after encoding and decoding a payload."""
    got = tuple(torch.zeros(side.shape, dtype=side.dtype) for side in part)
    decode(Format("t4,t3", exact=exact).encode([part]), [got])
    return got


def size(exact):
    return Format("t3", exact=exact).size((LAYERS, PAGE, HEADS, DIM), torch.bfloat16)


@pytest.mark.parametrize("interface_v1", [False, True])
@pytest.mark.parametrize("layout", SHAPES)
def test_pages_come_back_as_the_codec_has_them(tmp_path, layout, interface_v1):
    pool = MHATokenToKVPoolHost(layout)
    parts = [wanted(pool.page(index * PAGE), 0 if index else 4) for index in range(PAGES)]
    storage = backend(pool, folder=str(tmp_path), codec="t4,t3")
    keys, indices = [f"{i:064x}" for i in range(PAGES)], torch.arange(PAGES * PAGE)
    if interface_v1:
        assert storage.batch_set_v1(keys, indices) == [True] * PAGES
    else:
        assert storage.batch_set(keys, [pool.get_data_page(i * PAGE) for i in range(PAGES)])
    assert storage.batch_exists([*keys, "absent"]) == PAGES
    sizes = [Format("t4,t3", exact=exact).size((LAYERS, PAGE, HEADS, DIM), torch.bfloat16) for exact in (0, 0, 0, 4)]
    assert sorted(path.stat().st_size for path in tmp_path.rglob("*.tqp")) == sizes

    # Another process reads them, after a restart.
    pool.kv_buffer.zero_()
    storage = backend(pool, folder=str(tmp_path))
    if interface_v1:
        assert storage.batch_get_v1(keys, indices) == [True] * PAGES
    else:
        for i, page in enumerate(storage.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])):
            target = pool.get_data_page(i * PAGE, flat=False)
            target.copy_(page.view(target.shape))
    for index, part in enumerate(parts):
        for side, want in zip(pool.page(index * PAGE), part):
            assert torch.equal(side.contiguous().view(torch.int16), want.view(torch.int16))


def test_damaged_and_missing_pages_are_misses_and_can_be_stored_again(tmp_path):
    pool = MHATokenToKVPoolHost("layer_first")
    storage = backend(pool, folder=str(tmp_path))
    page = pool.get_data_page(0)
    assert storage.get("absent") is None and not storage.exists("absent")
    assert storage.set("key", page) and storage.get("key") is not None
    path = next(tmp_path.rglob("*.tqp"))
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", whole[:99] + b"\xff\xff" + whole[101:]):
        path.write_bytes(damaged)
        target = torch.full_like(page, 7)
        assert storage.get("key", target) is None and (target == 7).all()
        assert not storage.exists("key")
        assert storage.set("key", page) and path.read_bytes() == whole


def test_only_pages_that_may_begin_a_text_keep_exact_tokens(tmp_path):
    pool = MHATokenToKVPoolHost("layer_first")
    storage = backend(pool, folder=str(tmp_path))
    info = HiCacheStorageExtraInfo(prefix_keys=["before"])
    assert storage.batch_set_v1(["later"], torch.arange(PAGE), info) == [True]
    assert storage.batch_set_v1(["first", "second"], torch.arange(2 * PAGE), HiCacheStorageExtraInfo()) == [True] * 2
    sizes = {path.stem: path.stat().st_size for path in tmp_path.rglob("*.tqp")}
    assert sizes == {"later": size(0), "first": size(4), "second": size(0)}


def test_a_page_that_cannot_be_stored_is_a_failure(tmp_path):
    pool = MHATokenToKVPoolHost("layer_first")
    storage = backend(pool, folder=str(tmp_path))
    page = pool.get_data_page(0)
    page[5] = float("inf")
    assert storage.batch_set(["good", "bad"], [pool.get_data_page(PAGE), page]) is False
    assert storage.exists("good") and not storage.exists("bad")
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".tqp"]


def test_memory_forgets_the_oldest_and_ranks_do_not_share(tmp_path):
    pool = MHATokenToKVPoolHost("page_first")
    storage = backend(pool, max_bytes=1_000_000)
    storage.store.max_bytes = 2 * size(exact=4)
    for key in "abc":
        assert storage.set(key, pool.get_data_page(0))
    assert [storage.exists(key) for key in "abc"] == [False, True, True]
    assert storage.store.bytes == 2 * size(exact=4)
    assert backend(pool, folder=str(tmp_path)).set("a", pool.get_data_page(0))
    assert not backend(pool, folder=str(tmp_path), tp_rank=1).exists("a")


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_clear_removes_the_pages_of_this_rank(tmp_path, where):
    pool = MHATokenToKVPoolHost("layer_first")
    place = {"folder": str(tmp_path)} if where == "folder" else {"max_bytes": 1_000_000}
    ranks = [backend(pool, tp_rank=rank, **place) for rank in range(2)]
    ranks[1].store = ranks[0].store
    writing = tmp_path / ranks[0]._prefix / ".0.tmp"
    writing.parent.mkdir()
    writing.touch()
    for rank in ranks:
        assert rank.set("key", pool.get_data_page(0))
    ranks[0].clear()
    assert [rank.exists("key") for rank in ranks] == [False, True] and writing.exists()
    assert where == "folder" or ranks[0].store.bytes == size(exact=4)
    assert ranks[0].set("key", pool.get_data_page(0)) and ranks[0].get("key") is not None


def test_pages_of_further_pools_are_refused_when_they_are_registered(tmp_path):
    pool = MHATokenToKVPoolHost("layer_first")
    storage = backend(pool, folder=str(tmp_path))
    storage.register_mem_host_pool_v2(pool, PoolName.KV)
    with pytest.raises(tqkv.TqkvError, match="host pool 'swa' is not valid: expected a model with the pool 'kv' alone"):
        storage.register_mem_host_pool_v2(MHATokenToKVPoolHost("layer_first"), PoolName.SWA)


def test_a_part_of_a_page_and_options_that_nobody_knows_are_refused_by_name(tmp_path):
    """Under decode context parallelism each rank has other tokens of a page under the same key."""
    pool = MHATokenToKVPoolHost("layer_first")
    names = {field.name for field in dataclasses.fields(HiCacheStorageConfig)}
    for field, value in (("dcp_size", 2), ("tp_lcm_size", 8), ("should_split_heads", True)):
        if field in names:
            with pytest.raises(tqkv.TqkvError, match=f"{field} {value!r} of SGLang is not valid"):
                backend(pool, fields={field: value}, folder=str(tmp_path))
    for option in ("codek", "folders"):
        with pytest.raises(tqkv.TqkvError, match=f"option {option} of the backend tqkv is not valid: expected backend_name"):
            backend(pool, folder=str(tmp_path), **{option: "t4"})
    with pytest.raises(tqkv.TqkvError, match="argument stripes of a backend of SGLang is not valid"):
        TqkvHiCache(configured(folder=str(tmp_path)), {"stripes": 2})
    # SGLang's own words, some of which it takes out before.
    backend(pool, folder=str(tmp_path), interface_v1=1, prefetch_threshold=64, hicache_storage_pass_prefix_keys=True)


def test_what_is_not_understood_is_refused_by_name(tmp_path):
    pool = MHATokenToKVPoolHost("layer_first")
    with pytest.raises(tqkv.TqkvError, match="MLA"):
        backend(pool, mla=True, folder=str(tmp_path))
    with pytest.raises(tqkv.TqkvError, match="folder"):
        backend(pool)
    with pytest.raises(tqkv.TqkvError, match="codec"):
        backend(pool, folder=str(tmp_path), codec="zip")
    pool.layout = "page_unified"
    with pytest.raises(tqkv.TqkvError, match="page_unified"):
        backend(pool, folder=str(tmp_path))
    with pytest.raises(tqkv.TqkvError, match="MLATokenToKVPoolHost"):
        backend(type("MLATokenToKVPoolHost", (), {"layout": "layer_first"})(), folder=str(tmp_path))
    with pytest.raises(tqkv.TqkvError, match="float8"):
        backend(MHATokenToKVPoolHost("layer_first", torch.float8_e4m3fn), folder=str(tmp_path))
