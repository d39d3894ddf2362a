//! Saved states of llama.cpp through the C interface, with the mistakes of programs.

use crate::common::*;
use std::ffi::CString;
use std::fs;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use tqkv_capi::TqkvStatus::*;
use tqkv_capi::*;

/// 66 tokens, one KV head of 64, and recurrent state.
const STATE: &[u8] = include_bytes!("../../../session/tests/golden/coded.state");

fn pack(codecs: &str, head_dim: usize) -> Vec<u8> {
    let (codecs, mut stream) = (CString::new(codecs).unwrap(), Stream::default());
    // SAFETY: the state and the text are there, and the stream is not freed.
    let status = unsafe {
        tqkv_session_pack(STATE.as_ptr(), STATE.len(), codecs.as_ptr(), head_dim, Some(write), stream.user())
    };
    assert_eq!(status, TqkvOk, "{}", last_error());
    stream.bytes
}

fn inspect(bytes: &[u8]) -> Result<TqkvSessionInfo, TqkvStatus> {
    let mut info = MaybeUninit::<TqkvSessionInfo>::uninit();
    // SAFETY: the bytes are there, and the struct can be written; it is filled after TQKV_OK.
    unsafe {
        match tqkv_session_inspect(bytes.as_ptr(), bytes.len(), info.as_mut_ptr()) {
            TqkvOk => Ok(info.assume_init()),
            status => Err(status),
        }
    }
}

fn unpack(pack: &[u8], room: usize) -> (TqkvStatus, usize, Vec<u8>) {
    let (mut state, mut len) = (vec![0xa5; room], 7);
    // SAFETY: the pack is there, and the rooms can be written.
    let status = unsafe {
        tqkv_session_unpack(pack.as_ptr(), pack.len(), null(), state.as_mut_ptr(), room, &raw mut len)
    };
    (status, len, state)
}

#[test]
fn a_state_goes_through_memory_and_comes_back() {
    let exact = pack("exact", 0);
    let info = inspect(&exact).unwrap();
    assert_eq!((info.is_pack, info.is_exact, info.state_bytes), (1, 1, STATE.len()));
    assert_eq!(info.pack_bytes, exact.len());
    assert_eq!(unpack(&exact, STATE.len() + 3).2[..STATE.len()], *STATE);

    let coded = pack("t4,t2", 64);
    let info = inspect(&coded).unwrap();
    assert_eq!((info.is_pack, info.is_exact, info.pack_bytes), (1, 0, coded.len()));
    assert!(info.coded_pack_bytes < info.coded_state_bytes && info.coded_state_bytes < STATE.len());
    let (status, len, state) = unpack(&coded, STATE.len());
    assert_eq!((status, len), (TqkvOk, STATE.len()), "{}", last_error());
    assert_ne!(state, STATE);
    let info = inspect(&state).unwrap();
    assert_eq!((info.is_pack, info.state_bytes, info.pack_bytes), (0, STATE.len(), 0));
}

#[test]
fn files_have_the_bytes_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| CString::new(folder.path().join(name).to_str().unwrap()).unwrap();
    fs::write(folder.path().join("state"), STATE).unwrap();
    let (state, packed, back) = (text("state"), text("pack"), text("back"));
    let coded = pack("s4", 64);
    let mut info = MaybeUninit::<TqkvSessionInfo>::uninit();
    // SAFETY: the texts end with zeros, and the struct can be written; it is filled after TQKV_OK.
    unsafe {
        let status = tqkv_session_pack_file(state.as_ptr(), packed.as_ptr(), c"s4".as_ptr(), 64);
        assert_eq!(status, TqkvOk, "{}", last_error());
        assert_eq!(fs::read(folder.path().join("pack")).unwrap(), coded);
        assert_eq!(
            tqkv_session_unpack_file(packed.as_ptr(), back.as_ptr(), null()),
            TqkvOk,
            "{}",
            last_error()
        );
        assert_eq!(fs::read(folder.path().join("back")).unwrap(), unpack(&coded, STATE.len()).2);
        assert_eq!(tqkv_session_inspect_file(packed.as_ptr(), info.as_mut_ptr()), TqkvOk);
        assert_eq!(info.assume_init().pack_bytes, coded.len());

        // A refused file leaves no output, and an old one as it was.
        fs::write(folder.path().join("cut"), &coded[..coded.len() - 1]).unwrap();
        let (cut, none) = (text("cut"), text("none"));
        refused(
            tqkv_session_unpack_file(cut.as_ptr(), none.as_ptr(), null()),
            TqkvBadSession,
            "cut: pack: cut",
        );
        refused(tqkv_session_unpack_file(none.as_ptr(), back.as_ptr(), null()), TqkvIo, "none");
        let status = tqkv_session_pack_file(cut.as_ptr(), packed.as_ptr(), null(), 0);
        refused(status, TqkvBadSession, "cut: state");
        refused(tqkv_session_inspect_file(cut.as_ptr(), info.as_mut_ptr()), TqkvBadSession, "cut");
    }
    assert!(!folder.path().join("none").exists());
    assert_eq!(fs::read(folder.path().join("pack")).unwrap(), coded);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn a_pack_in_a_basis_needs_its_basis() {
    const BASIS: &[u8] = include_bytes!("../../../session/tests/golden/basis.tqb");
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str| CString::new(folder.path().join(name).to_str().unwrap()).unwrap();
    fs::write(folder.path().join("state"), STATE).unwrap();
    fs::write(folder.path().join("basis"), BASIS).unwrap();
    let (state, packed, back) = (text("state"), text("pack"), text("back"));
    let (mut stream, mut number, mut room) = (Stream::default(), 0, vec![0; STATE.len()]);
    let (mut loaded, mut read, mut none) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the texts end with zeros, the bytes are there, and each basis is freed once, at the end.
    unsafe {
        assert_eq!(tqkv_basis_load(text("basis").as_ptr(), &raw mut loaded), TqkvOk, "{}", last_error());
        assert_eq!(tqkv_basis_from_bytes(BASIS.as_ptr(), BASIS.len(), &raw mut read), TqkvOk);
        refused(tqkv_basis_load(text("none").as_ptr(), &raw mut none), TqkvIo, "none");
        refused(tqkv_basis_load(state.as_ptr(), &raw mut none), TqkvBadArgument, "state: basis");
        refused(tqkv_basis_from_bytes(BASIS.as_ptr(), 99, &raw mut none), TqkvBadArgument, "basis");
        assert!(none.is_null());

        // Files and memory give the same bytes, and so do a basis of a file and one of memory.
        let pack = |basis, bits| tqkv_session_pack_basis_file(state.as_ptr(), packed.as_ptr(), basis, bits);
        assert_eq!(pack(loaded, 1.1), TqkvOk, "{}", last_error());
        let (at, len, user) = (STATE.as_ptr(), STATE.len(), stream.user());
        assert_eq!(tqkv_session_pack_basis(at, len, read, 1.1, Some(write), user), TqkvOk);
        assert_eq!(fs::read(folder.path().join("pack")).unwrap(), stream.bytes);
        let unpack = |basis| tqkv_session_unpack_file(packed.as_ptr(), back.as_ptr(), basis);
        assert_eq!(unpack(read), TqkvOk, "{}", last_error());
        let (first, bytes) = (room.as_mut_ptr(), room.len());
        let (coded, coded_len) = (stream.bytes.as_ptr(), stream.bytes.len());
        let status = tqkv_session_unpack(coded, coded_len, loaded, first, bytes, &raw mut number);
        assert_eq!((status, number), (TqkvOk, STATE.len()), "{}", last_error());
        assert_eq!(fs::read(folder.path().join("back")).unwrap(), room);

        refused(pack(loaded, 9.0), TqkvBadArgument, "expected 0.5 to 5");
        refused(pack(null(), 1.1), TqkvNullPointer, "basis");
        refused(tqkv_session_pack_basis(at, len, read, 1.1, None, user), TqkvNullPointer, "write");
        refused(unpack(null()), TqkvBadArgument, "given is none");
        let status = tqkv_session_unpack(coded, coded_len, null(), first, bytes, &raw mut number);
        refused(status, TqkvBadArgument, "given is none");
        [loaded, read, none].into_iter().for_each(|basis| tqkv_basis_free(basis));
    }
}

#[test]
fn mistakes_are_refused() {
    let coded = pack("t4", 64);
    let (status, len, state) = unpack(&coded, STATE.len() - 1);
    refused(status, TqkvFull, &format!("expected {} or more", STATE.len()));
    assert!(len == STATE.len() && state.iter().all(|byte| *byte == 0xa5), "the length alone is written");
    // Every damaged byte is found, and the room stays as it was.
    for at in (0..coded.len()).step_by(997) {
        let mut bad = coded.clone();
        bad[at] ^= 1;
        let (status, _, state) = unpack(&bad, STATE.len());
        assert_eq!(status, TqkvBadSession, "byte {at}");
        assert!(state.iter().all(|byte| *byte == 0xa5));
    }
    assert_eq!(inspect(b"neither").unwrap_err(), TqkvBadSession);
    let mut stream = Stream::default();
    let (at, len, user) = (STATE.as_ptr(), STATE.len(), stream.user());
    let mut state = coded.clone();
    let mut number = 0;
    // SAFETY: what is not null is there, and the stream is not freed.
    unsafe {
        refused(tqkv_session_pack(null(), len, null(), 0, Some(write), user), TqkvNullPointer, "state");
        refused(tqkv_session_pack(at, len, null(), 0, None, user), TqkvNullPointer, "write");
        let pack =
            |codecs: &CString, dim| tqkv_session_pack(at, len, codecs.as_ptr(), dim, Some(write), user);
        refused(
            pack(&CString::new("t9").unwrap(), 0),
            TqkvBadArgument,
            "\"t9\" is not valid: expected a codec",
        );
        refused(pack(&CString::new("t4").unwrap(), 60), TqkvBadArgument, "heads of 60");
        refused(tqkv_session_pack(at, 100, null(), 0, Some(write), user), TqkvBadSession, "cut");
        let first = state.as_mut_ptr();
        let status = tqkv_session_unpack(first, state.len(), null(), first, state.len(), &raw mut number);
        refused(status, TqkvBadArgument, "overlap");
        let status = tqkv_session_unpack(coded.as_ptr(), coded.len(), null(), null_mut(), 0, &raw mut number);
        refused(status, TqkvNullPointer, "state");
        let status = tqkv_session_inspect(coded.as_ptr(), coded.len(), null_mut());
        refused(status, TqkvNullPointer, "info");
    }
    assert!(stream.bytes.is_empty());
}
