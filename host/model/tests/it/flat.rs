//! The flat file of the shipped model, and models that have none. `core/mcu/check` runs such files.

use tqkv_model::flat::{WeightBits, read};
use tqkv_model::{Model, shipped};

fn file(bits: WeightBits) -> Vec<u8> {
    Model::shipped().unwrap().to_flat(bits).unwrap()
}

/// The checksums that end both files. `core/mcu/check` compares what these files say with the float model.
#[test]
fn files_are_as_written_down() {
    let sums = [WeightBits::Eight, WeightBits::Four].map(|bits| {
        let file = file(bits);
        u32::from_le_bytes(*file.last_chunk().unwrap())
    });
    assert_eq!(sums, [0xf704_7777, 0xda4a_9f0e]);
}

#[test]
fn four_bits_take_half() {
    let (eight, four) = (file(WeightBits::Eight), file(WeightBits::Four));
    assert!(four.len() * 100 < eight.len() * 54, "{} of {}", four.len(), eight.len());
}

/// Damage is refused by name. Damage that only the checksum can find is refused by the checksum.
#[test]
fn mutants_are_refused() {
    let file = file(WeightBits::Four);
    let refused = |file: &[u8]| read(file).err().map(|error| error.to_string());
    assert_eq!(refused(&file), None);
    for len in [0, 1, 39, 40, file.len() / 2, file.len() - 1] {
        assert!(refused(&file[..len]).is_some(), "{len} bytes");
    }
    for at in (0..64).chain((64..file.len()).step_by(50_021)).chain([file.len() - 1]) {
        let mut mutant = file.clone();
        mutant[at] ^= 1 << (at % 8);
        assert!(refused(&mutant).is_some(), "byte {at}");
    }
    let mut damaged = file.clone();
    damaged[1000] ^= 1;
    assert!(refused(&damaged).unwrap().contains("checksum"));
}

#[test]
fn models_of_other_kinds_are_refused_by_name() {
    let config = std::str::from_utf8(shipped::CONFIG).unwrap();
    let windowed = config
        .replace("LlamaForCausalLM", "MistralForCausalLM")
        .replace("\"model_type\": \"llama\"", "\"model_type\": \"mistral\", \"sliding_window\": 64");
    let model = Model::from_bytes("windowed", windowed.as_bytes(), shipped::WEIGHTS, None).unwrap();
    let error = model.to_flat(WeightBits::Eight).unwrap_err().to_string();
    assert!(error.contains("sliding windows"), "{error}");
}
