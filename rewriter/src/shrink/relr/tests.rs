//! Packed addresses are those that were packed.

use super::*;

/// As a loader reads it.
fn decode(bytes: &[u8]) -> Vec<u64> {
    let (mut slots, mut next) = (Vec::new(), 0);
    for word in bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())) {
        if word & 1 == 0 {
            slots.push(word);
            next = word + WORD;
        } else {
            slots.extend((0..BITS).filter(|bit| word >> (bit + 1) & 1 == 1).map(|bit| next + bit * WORD));
            next += BITS * WORD;
        }
    }
    slots
}

#[test]
fn what_is_packed_is_what_a_loader_unpacks() {
    let mut random = 11u64;
    for round in 0..200u64 {
        let mut at = 0x4000u64;
        let mut slots = Vec::new();
        for _ in 0..round {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            at += WORD * (1 + (random >> 33) % [2, 10, 70, 1000][(random >> 20) as usize % 4]);
            slots.push(at);
        }
        assert_eq!(decode(&encode(&slots)), slots);
    }
}

#[test]
fn neighbors_share_a_word() {
    let slots: Vec<u64> = (0..64).map(|i| 0x1000 + 8 * i).collect();
    assert_eq!(encode(&slots).len(), 16);
}
