//! Random recipes: a generator of numbers and a mutator that changes whole records.
//!
//! The numbers are Sebastiano Vigna's splitmix64, so that a seed means the same inputs on every machine.

use crate::edits::{HEADER_LEN, RECORD_LEN};

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % (bound.max(1) as u64)) as usize
    }
}

/// A recipe with a few records, most often one or two: with many, one of them stops the reader early and hides the others.
pub fn recipe(random: &mut Random) -> Vec<u8> {
    let mut recipe: Vec<u8> = (0..HEADER_LEN).map(|_| random.draw() as u8).collect();
    let mut records = 1;
    while records < 12 && random.below(5) < 2 {
        records += 1;
    }
    for _ in 0..records {
        recipe.extend_from_slice(&record(random));
    }
    recipe
}

fn record(random: &mut Random) -> [u8; RECORD_LEN] {
    let mut record = random.draw().to_le_bytes();
    // Small values are the ones that fields have.
    if random.below(2) == 0 {
        record[5] = 0;
        record[6] = 0;
        record[7] = 0;
    }
    record
}

/// Changes a recipe by one step, in place; it grows by one record at most and never beyond `len_max` bytes.
pub fn mutate(recipe: &mut Vec<u8>, len_max: usize, random: &mut Random) {
    while recipe.len() < HEADER_LEN {
        recipe.push(random.draw() as u8);
    }
    let records = (recipe.len() - HEADER_LEN) / RECORD_LEN;
    let place = |index: usize| HEADER_LEN + index * RECORD_LEN;
    let start = place(random.below(records));
    match random.below(8) {
        0 => {
            let at = random.below(HEADER_LEN);
            recipe[at] = random.draw() as u8;
        }
        1 | 2 if recipe.len() + RECORD_LEN <= len_max => {
            let at = place(random.below(records + 1));
            recipe.splice(at..at, record(random));
        }
        3 if records > 0 => {
            recipe.drain(start..start + RECORD_LEN);
        }
        4 if records > 0 => recipe[start..start + RECORD_LEN].copy_from_slice(&record(random)),
        5 if records > 0 => {
            // The same edit a little further on.
            let offset = u16::from_le_bytes([recipe[start + 2], recipe[start + 3]]);
            let offset = offset.wrapping_add((random.below(33) as u16).wrapping_sub(16));
            recipe[start + 2..start + 4].copy_from_slice(&offset.to_le_bytes());
        }
        _ if records > 0 => {
            let at = start + random.below(RECORD_LEN);
            recipe[at] = match random.below(3) {
                0 => random.draw() as u8,
                1 => recipe[at].wrapping_add(1),
                _ => recipe[at].wrapping_sub(1),
            };
        }
        _ => recipe.extend_from_slice(&record(random)),
    }
    recipe.truncate(len_max.max(HEADER_LEN));
}
