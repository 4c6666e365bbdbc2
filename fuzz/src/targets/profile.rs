//! Target `profile`: the reader of `.rlp` files, and what is done with what it accepts.
//!
//! A profile that is accepted is written again and read back, added to itself, shown, carried over to its program and to another one,
//! and the layout that it asks for is made and checked.

use std::sync::OnceLock;

use lifter::elf::{Image, Unwind};
use lifter::ir::Program;
use profiles::ProfileFile;
use profiles::infer::first_inconsistent;
use xxhash_rust::xxh3::xxh3_64;

use super::optimize::{apply, by_weights};
use super::{Outcome, refused};
use crate::edits::Recipe;
use crate::layout::{Class, Layout, Region};
use crate::seeds;

/// Flags: make the hash of the descriptor right, so that the checks behind it are reached; lay the program out.
const REHASH: u8 = 1;
const LAY_OUT: u8 = 2;

const HEADER_LEN: usize = 128;
/// Offset of the descriptor's length and of its hash in the header.
const DESCRIPTOR_LEN: usize = 24;
const DESCRIPTOR_HASH: usize = 88;

/// A lifted seed.
struct Lifted {
    image: Image<'static>,
    program: Program,
}

fn programs() -> &'static [Lifted] {
    static PROGRAMS: OnceLock<Vec<Lifted>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let lift = |&(_, elf): &(seeds::Seed, usize)| {
            let image = Image::parse(seeds::ELF[elf].bytes).expect("the seed is sound");
            let unwind = Unwind::parse(&image).expect("the seed's unwind tables are sound");
            let program = lifter::lift(&image, unwind).expect("the seed can be lifted");
            Lifted { image, program }
        };
        seeds::PROFILES.iter().map(lift).collect()
    })
}

fn descriptor_len(bytes: &[u8]) -> usize {
    let len = bytes.get(DESCRIPTOR_LEN..DESCRIPTOR_LEN + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
    usize::try_from(len).unwrap_or(usize::MAX)
}

pub(super) fn file(recipe: &Recipe) -> Vec<u8> {
    let (seed, _) = seeds::PROFILES[usize::from(recipe.seed) % seeds::PROFILES.len()];
    let region = |start, len, entry| Region { class: Class::FileHeader, start, len, entry };
    let descriptor = region(HEADER_LEN, descriptor_len(seed.bytes), 1);
    let counters = region(4096, seed.bytes.len() - 4096, 8);
    let extremes = [0, 1, 127, 128, 4096, 8192, u64::from(u32::MAX), 1 << 32, 1 << 52, 1 << 61, 1 << 63, u64::MAX];
    // The descriptor is where the structure is: most edits go there.
    let regions = vec![region(0, 96, 8), descriptor, descriptor, descriptor, counters];
    let layout = Layout { regions, extremes: extremes.to_vec(), addresses: extremes.to_vec(), ..Layout::default() };
    let mut file = recipe.apply(seed.bytes, &layout, &[Class::FileHeader]);
    let described = HEADER_LEN.checked_add(descriptor_len(&file)).and_then(|end| file.get(HEADER_LEN..end));
    if let Some(hash) = described.map(xxh3_64).filter(|_| recipe.flags & REHASH != 0) {
        file[DESCRIPTOR_HASH..DESCRIPTOR_HASH + 8].copy_from_slice(&hash.to_le_bytes());
    }
    file
}

pub(super) fn run(recipe: &Recipe, file: &[u8]) -> Outcome {
    let profile = match ProfileFile::read(file) {
        Ok(profile) => profile,
        Err(error) => return refused(error),
    };
    let again = ProfileFile::read(&profile.write()).expect("what relift wrote can be read");
    assert_eq!(again, profile, "a profile changes when it is written");
    let sum = ProfileFile::merge(&[again, profile]).expect("a profile can be added to itself");
    let _summary = sum.summary();
    let mut outcomes = Vec::new();
    for (index, Lifted { image, program }) in programs().iter().enumerate() {
        let found = match profiles::attribute(&sum, image, program) {
            Ok(found) => found,
            Err(error) => {
                outcomes.push(refused(error));
                continue;
            }
        };
        if let Some(place) = first_inconsistent(program, &found.weights) {
            panic!("inferred counts are inconsistent: {place:?}");
        }
        if recipe.flags & LAY_OUT != 0 {
            let relinked = apply(image, program, &found.weights, &by_weights(program, &found.weights))
                .unwrap_or_else(|error| panic!("a profile makes a sound program impossible to relink: {error}"));
            let (_, elf) = seeds::PROFILES[index];
            let report = checker::check(seeds::ELF[elf].bytes, &relinked.bytes).expect("the checker reads the output");
            assert!(report.is_ok(), "the checker found\n{}", report.summary(20));
        }
        outcomes.push(Outcome::Accepted);
    }
    // Of two programs, one that takes the profile is enough.
    outcomes.iter().find(|o| **o == Outcome::Accepted).or(outcomes.first()).cloned().unwrap_or(Outcome::Accepted)
}
