//! Targets `elf`, `eh_frame` and `lsda`: the readers of the lifter.
//!
//! What a reader accepts, later phases trust; the promises that they trust are looked at here.

use lifter::elf::{Image, Unwind};

use super::optimize::{Job, rewrite_and_check};
use super::{Outcome, damage, refused};
use crate::edits::Recipe;
use crate::layout::Class;

const HEADERS: [Class; 8] = [
    Class::FileHeader,
    Class::ProgramHeaders,
    Class::SectionHeaders,
    Class::Dynamic,
    Class::Symbols,
    Class::Strings,
    Class::Relocations,
    Class::Notes,
];

/// Flags of recipes for unwind tables.
const WITHOUT_SECTIONS: u8 = 1;
const REWRITE: u8 = 2;

pub(super) fn headers(recipe: &Recipe) -> Vec<u8> {
    damage(recipe, &HEADERS)
}

pub(super) fn frames(recipe: &Recipe) -> Vec<u8> {
    without_sections(recipe, damage(recipe, &[Class::Frames, Class::FrameIndex]))
}

pub(super) fn exceptions(recipe: &Recipe) -> Vec<u8> {
    without_sections(recipe, damage(recipe, &[Class::Exceptions]))
}

/// The same file without section headers if the recipe says so: the tables are then found by the program header.
fn without_sections(recipe: &Recipe, mut file: Vec<u8>) -> Vec<u8> {
    if recipe.flags & WITHOUT_SECTIONS != 0 {
        file[40..48].fill(0);
        file[60..64].fill(0);
    }
    file
}

pub(super) fn elf(_recipe: &Recipe, file: &[u8]) -> Outcome {
    let image = match Image::parse(file) {
        Ok(image) => image,
        Err(error) => return refused(error),
    };
    for (id, section) in image.sections.iter().filter(|(_, s)| s.has_bytes()) {
        assert_eq!(image.section_bytes(id).len() as u64, section.sh_size, "the bytes of section {id} are not all there");
    }
    for segment in image.loads() {
        let len = segment.p_filesz as usize;
        assert!(len == 0 || image.read(segment.p_vaddr, len).is_some(), "{segment:?} is not in the file");
        assert!(image.low() <= segment.p_vaddr && segment.end() <= image.high(), "{segment:?} is outside the image");
    }
    assert!(image.dynamic_relocs.is_sorted_by_key(|r| r.slot), "dynamic relocations don't ascend");
    assert!(image.static_relocs.is_sorted_by_key(|r| r.at), "static relocations don't ascend");
    match Unwind::parse(&image) {
        Ok(unwind) => check_unwind(&image, &unwind),
        Err(error) => return refused(error),
    }
    Outcome::Accepted
}

pub(super) fn unwind(recipe: &Recipe, file: &[u8]) -> Outcome {
    let image = match Image::parse(file) {
        Ok(image) => image,
        Err(error) => return refused(error),
    };
    match Unwind::parse(&image) {
        Ok(unwind) => check_unwind(&image, &unwind),
        Err(error) => return refused(error),
    }
    match recipe.flags & REWRITE {
        0 => Outcome::Accepted,
        _ => rewrite_and_check(file, Job::Shuffle(u64::from(recipe.variation))),
    }
}

/// What [`Unwind`] promises.
fn check_unwind(image: &Image<'_>, unwind: &Unwind) {
    let mut reached = image.low();
    for (fde, data) in unwind.fdes.iter() {
        assert!(reached <= data.start && data.start < data.end, "{fde} overlaps the entry before it, or is empty");
        reached = data.end;
        assert!((data.cie as usize) < unwind.cies.len(), "{fde} names no common entry");
        assert!(data.ops.is_sorted_by_key(|op| op.at), "the instructions of {fde} don't ascend");
        assert!(image.is_executable(data.start), "{fde} covers no code");
        let Some(lsda) = data.lsda else { continue };
        let lsda = &unwind.lsdas[lsda as usize];
        let mut reached = data.start;
        for site in &lsda.call_sites {
            assert!(reached <= site.start && site.start < site.end && site.end <= data.end, "{site:?} is outside {fde}");
            reached = site.end;
        }
    }
}
