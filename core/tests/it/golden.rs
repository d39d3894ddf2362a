//! The stored bytes compared with the golden file; also run on a big-endian machine.

#[test]
fn files_equal_the_golden_file() {
    let golden = include_str!("../../../tests/vectors/files.txt");
    for (want, got) in golden.lines().zip(tqkv_tests::files::files().lines()) {
        assert_eq!(got, want);
    }
}

#[test]
fn blocks_equal_the_golden_file() {
    let golden = include_str!("../../../tests/vectors/blocks.txt");
    let made = tqkv_tests::golden::blocks();
    for (i, (want, got)) in golden.lines().zip(made.lines()).enumerate() {
        assert_eq!(got, want, "line {}", i + 1);
    }
    assert_eq!(made.lines().count(), golden.lines().count());
}
