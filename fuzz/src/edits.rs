//! Recipes: bytes that say what to change in a sound file.
//!
//! **Format.** Three bytes, the number of the sound file, flags for the target, and a number that the target may use as it likes; then
//! records of eight bytes: what to do, in which region, at which offset (16 bits), with which value (32 bits). Everything counts
//! modulo what there is, so that all bytes are a recipe and each record does something. A rest of fewer than eight bytes is ignored.
//!
//! **Ends** because there are at most [`RECORDS_MAX`] records, each of which touches at most 64 bytes, or adds 4096 to the file at most.

use crate::layout::{Class, Layout, Region};

pub const HEADER_LEN: usize = 3;
pub const RECORD_LEN: usize = 8;
/// Of one recipe; more are ignored.
pub const RECORDS_MAX: usize = 64;

/// A decoded recipe.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    pub seed: u8,
    pub flags: u8,
    pub variation: u8,
    pub edits: Vec<Edit>,
}

/// One record.
#[derive(Copy, Clone, Debug)]
pub struct Edit {
    pub operation: u8,
    pub region: u8,
    pub offset: u16,
    pub value: u32,
}

impl Recipe {
    pub fn decode(bytes: &[u8]) -> Recipe {
        let byte = |index: usize| bytes.get(index).copied().unwrap_or(0);
        let records = bytes.get(HEADER_LEN..).unwrap_or(&[]).chunks_exact(RECORD_LEN).take(RECORDS_MAX);
        let edit = |r: &[u8]| Edit {
            operation: r[0],
            region: r[1],
            offset: u16::from_le_bytes([r[2], r[3]]),
            value: u32::from_le_bytes([r[4], r[5], r[6], r[7]]),
        };
        Recipe { seed: byte(0), flags: byte(1), variation: byte(2), edits: records.map(edit).collect() }
    }

    /// The file that the recipe makes of a sound one, with edits in regions of these classes only.
    pub fn apply(&self, sound: &[u8], layout: &Layout, classes: &[Class]) -> Vec<u8> {
        let allowed: Vec<Region> = layout.regions.iter().filter(|r| classes.contains(&r.class)).copied().collect();
        let mut file = Damaged { bytes: sound.to_vec(), layout };
        for edit in &self.edits {
            if let Some(region) = allowed.get(usize::from(edit.region) % allowed.len().max(1)) {
                file.apply(*edit, *region, classes.contains(&Class::FileHeader));
            }
        }
        file.bytes
    }
}

/// Short instructions that change what code means: returns, jumps, calls through registers and tables, prefixes, padding, traps.
const INSTRUCTIONS: [&[u8]; 20] = [
    &[0xc3],
    &[0xcc],
    &[0x90],
    &[0xeb, 0x00],
    &[0xeb, 0xfe],
    &[0x74, 0x02],
    &[0xe9, 0, 0, 0, 0],
    &[0xe8, 0, 0, 0, 0],
    &[0xff, 0xe0],
    &[0x3e, 0xff, 0xe0],
    &[0xff, 0xd0],
    &[0xff, 0x24, 0xc5, 0, 0x10, 0x40, 0],
    &[0x48, 0x63, 0x04, 0x82],
    &[0x48, 0x01, 0xd0],
    &[0x48, 0x8d, 0x05, 0, 0, 0, 0],
    &[0xe3, 0x05],
    &[0xf0],
    &[0x0f, 0x0b],
    &[0xf3, 0x0f, 0x1e, 0xfa],
    &[0x66, 0xe9, 0x00, 0x00],
];

/// A file with edits in it.
struct Damaged<'l> {
    bytes: Vec<u8>,
    layout: &'l Layout,
}

impl Damaged<'_> {
    fn apply(&mut self, edit: Edit, region: Region, may_resize: bool) {
        let value = edit.value;
        let offset = usize::from(edit.offset) % region.len;
        let at = |unit: usize| region.start + offset / unit * unit;
        let pick = |list: &[u64]| list.get(value as usize % list.len().max(1)).copied().unwrap_or(0);
        match edit.operation % 20 {
            0 => self.write(at(1), &value.to_le_bytes()[..1]),
            1 => self.write(at(2), &value.to_le_bytes()[..2]),
            2 => self.write(at(4), &value.to_le_bytes()),
            3 => self.write(at(8), &i64::from(value as i32).to_le_bytes()),
            4 => self.add(at(1), 1, i64::from(value as i8)),
            5 => self.add(at(4), 4, i64::from(value as i16)),
            6 => self.add(at(8), 8, i64::from(value as i32)),
            7 => self.write(at(8), &pick(&self.layout.extremes).to_le_bytes()),
            8 => self.write(at(4), &pick(&self.layout.extremes).to_le_bytes()[..4]),
            9 => self.write(at(8), &pick(&self.layout.addresses).to_le_bytes()),
            10 => self.refer(at(4), pick(&self.layout.addresses)),
            11 | 12 => self.redirect(edit),
            13 => self.fill(at(1), value as usize % 64, [0, 0x90, 0xcc, 0xff][(value >> 8) as usize % 4]),
            14 => self.copy(region, offset, (value >> 8) as usize % region.len, value as usize % 64),
            15 | 16 => self.swap_entries(region, offset, value as usize),
            17 => self.write(at(1), INSTRUCTIONS[value as usize % INSTRUCTIONS.len()]),
            18 if may_resize && edit.offset.is_multiple_of(4) => self.bytes.truncate(value as usize % self.bytes.len().max(1)),
            19 if may_resize && edit.offset.is_multiple_of(4) => {
                self.bytes.resize(self.bytes.len() + value as usize % 4096, (value >> 16) as u8);
            }
            // The bit of a field: flags, encodings, prefixes.
            _ => self.flip(at(1), 1 << (value % 8)),
        }
    }

    /// As much of `bytes` as the file has room for.
    fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..) {
            let len = place.len().min(bytes.len());
            place[..len].copy_from_slice(&bytes[..len]);
        }
    }

    fn flip(&mut self, at: usize, mask: u8) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte ^= mask;
        }
    }

    fn add(&mut self, at: usize, len: usize, delta: i64) {
        let Some(field) = self.bytes.get_mut(at..at + len) else { return };
        let mut word = [0; 8];
        word[..len].copy_from_slice(field);
        let sum = u64::from_le_bytes(word).wrapping_add_signed(delta);
        field.copy_from_slice(&sum.to_le_bytes()[..len]);
    }

    /// Makes the 32 bits at `at` name an address relative to themselves.
    fn refer(&mut self, at: usize, target: u64) {
        let distance = target.wrapping_sub(self.layout.address_of(at)) as u32;
        self.write(at, &distance.to_le_bytes());
    }

    /// Leads a reference in code elsewhere: to another address that means something, or a few bytes further.
    fn redirect(&mut self, edit: Edit) {
        let Some(&at) = self.layout.fields.get(usize::from(edit.offset) % self.layout.fields.len().max(1)) else { return };
        if edit.operation.is_multiple_of(2) {
            return self.add(at, 4, i64::from(edit.value as i8));
        }
        let target = self.layout.addresses.get(edit.value as usize % self.layout.addresses.len().max(1));
        // The displacement counts from its own end.
        self.refer(at, target.copied().unwrap_or(0).wrapping_sub(4));
    }

    fn fill(&mut self, at: usize, len: usize, value: u8) {
        self.bytes.iter_mut().skip(at).take(len).for_each(|byte| *byte = value);
    }

    fn copy(&mut self, region: Region, to: usize, from: usize, len: usize) {
        let len = len.min(region.len - to.max(from));
        let source = region.start + from;
        if let Some(bytes) = self.bytes.get(source..source + len).map(<[u8]>::to_vec) {
            self.write(region.start + to, &bytes);
        }
    }

    fn swap_entries(&mut self, region: Region, offset: usize, other: usize) {
        let count = region.len / region.entry;
        if count < 2 {
            return;
        }
        let place = |index: usize| region.start + index % count * region.entry;
        let (first, second) = (place(offset / region.entry), place(other));
        if self.bytes.len() < first.max(second) + region.entry {
            return;
        }
        (0..region.entry).for_each(|i| self.bytes.swap(first + i, second + i));
    }
}
