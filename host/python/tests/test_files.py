""".tqk files are the same as those of the command."""

import subprocess

import numpy as np
import pytest
import tqkv


@pytest.mark.parametrize("name, centre", [("t3", False), ("s4", True), ("i8", False)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_files_are_those_of_the_command(rng, tmp_path, command, name, centre, dtype):
    x = (rng.standard_normal((9000, 64)) + 1).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    centred = ["--centre"] if centre else []
    run = [command, "encode", "--codec", name, *centred, "--seed", "9", tmp_path / "x.npy", tmp_path / "theirs.tqk"]
    subprocess.run(run, check=True)
    tqkv.save(tmp_path / "ours.tqk", x, tqkv.Codec(name, 64, 9), centre=centre)
    assert (tmp_path / "ours.tqk").read_bytes() == (tmp_path / "theirs.tqk").read_bytes()
    subprocess.run([command, "decode", tmp_path / "ours.tqk", tmp_path / "y.npy"], check=True)
    assert (np.load(tmp_path / "y.npy") == tqkv.open(tmp_path / "ours.tqk").read()).all()


def test_what_is_written_piece_by_piece_is_read_anywhere(rng, tmp_path, torch):
    path = tmp_path / "keys.tqk"
    codec = tqkv.Codec("t4", 128)
    x = torch.from_numpy(rng.standard_normal((10_000, 128), dtype=np.float32)).bfloat16()
    mean = x.float().mean(0)
    with tqkv.TqkWriter(path, codec, mean) as writer:
        for some in x.split(777):
            writer.write(some)
        assert not path.exists()
    file = tqkv.open(str(path))
    assert (len(file), file.dim, file.codec.name) == (10_000, 128, "t4")
    assert (file.mean == mean.numpy()).all()
    blocks = codec.encode(x.float() - mean)
    assert (torch.from_numpy(file.blocks()) == blocks).all()
    whole = file.read()
    np.testing.assert_allclose(whole, codec.decode(blocks) + mean, atol=1e-6)
    # The range crosses chunks of the file.
    assert (file[3000:9001] == whole[3000:9001]).all()
    assert (file[-1] == whole[-1]).all() and (file[5] == whole[5]).all() and (file[9:3:-2] == whole[9:3:-2]).all()
    assert (file.read(7, 9, np.float16) == whole[7:9].astype(np.float16)).all()
    assert file[4:4].shape == (0, 128)
    file.verify()
    for bad in ((0, 10_001), (5, 3)):
        with pytest.raises(tqkv.TqkvError, match="of 10000"):
            file.read(*bad)
    with pytest.raises(IndexError):
        file[10_000]


def test_a_file_that_fails_does_not_appear(rng, tmp_path):
    path = tmp_path / "keys.tqk"
    x = rng.standard_normal((10, 64), dtype=np.float32)
    codec = tqkv.Codec("s4", 64)
    with pytest.raises(RuntimeError), tqkv.TqkWriter(path, codec) as writer:
        writer.write(x)
        raise RuntimeError
    with pytest.raises(tqkv.TqkvError, match="vector 3 of x"), tqkv.TqkWriter(path, codec) as writer:
        x[3] = np.nan
        writer.write(x)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(tqkv.TqkvError, match="is not being written any more"):
        writer.write(x[:1])
    with pytest.raises(tqkv.TqkvError, match="mean and head dim differ"):
        tqkv.TqkWriter(path, codec, np.zeros(63, np.float32))
    with pytest.raises(OSError, match="nowhere"):
        tqkv.open(tmp_path / "nowhere.tqk")
    with pytest.raises(OSError):
        tqkv.open(tmp_path)


def test_damaged_files_are_refused(rng, tmp_path):
    path = tmp_path / "keys.tqk"
    tqkv.save(path, rng.standard_normal((300, 64), dtype=np.float32), tqkv.Codec("s4", 64))
    good = path.read_bytes()
    broken = tmp_path / "broken.tqk"
    for _ in range(400):
        bad = bytearray(good)
        at = int(rng.integers(len(bad)))
        if rng.random() < 0.5:
            bad[at] ^= 1 << int(rng.integers(8))
        else:
            del bad[at:]
        broken.write_bytes(bad)
        with pytest.raises(tqkv.TqkvError) as refused:
            tqkv.open(broken).read()
        assert "broken.tqk" in str(refused.value) and "\n" not in str(refused.value)
