//! Codes side by side: code i of b bits begins at bit b i. The least significant bit comes first.

/// Writes codes of `bits` bits, at most 8, over `bytes`.
pub(crate) fn pack(codes: &[u8], bits: usize, bytes: &mut [u8]) {
    bytes.fill(0);
    for (i, &code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let at = bits * i + bit;
            bytes[at / 8] |= (code >> bit & 1) << (at % 8);
        }
    }
}

/// Reads code `i` of `bits` bits.
pub(crate) fn code(bytes: &[u8], bits: usize, i: usize) -> u8 {
    (0..bits).map(|bit| (bytes[(bits * i + bit) / 8] >> ((bits * i + bit) % 8) & 1) << bit).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_bits_lie_as_eight_in_three_bytes() {
        let codes = [1, 2, 3, 4, 5, 6, 7, 0];
        let mut bytes = [0xff; 3];
        pack(&codes, 3, &mut bytes);
        assert_eq!(bytes, [0b1101_0001, 0b0101_1000, 0b0001_1111]);
        assert!((0..8).all(|i| code(&bytes, 3, i) == codes[i]));
    }
}
