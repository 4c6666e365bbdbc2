//! One thing is made wrong in the output; it must be seen, and called by its name.

use super::*;
use crate::decode::{Inst, Kind};
use crate::image::Slot;
use crate::unwind::Rows;
use crate::walk::Side;

struct Subject {
    file: Vec<u8>,
}

impl Subject {
    fn new(path: &str) -> Option<Self> {
        stock(path).map(|file| Self { file })
    }

    fn with<T>(&self, look: impl FnOnce(&Side<'_>) -> T) -> T {
        self.with_known(|known| look(&known.side))
    }

    fn with_known<T>(&self, look: impl FnOnce(&Known<'_>) -> T) -> T {
        let image = Image::parse(&self.file).unwrap();
        look(&Known::of(Side::new(image, &mut Rows::default(), &Arc::new(Memo::new())).unwrap()))
    }

    fn offset(&self, address: u64) -> usize {
        self.with(|side| side.image.at(address, 1).unwrap().as_ptr() as usize - side.image.bytes.as_ptr() as usize)
    }

    /// The first instruction after `skip` others that satisfy the same condition.
    fn find(&self, skip: usize, wanted: impl Fn(&Side<'_>, u64, Inst) -> bool) -> (u64, Inst) {
        self.with(|side| {
            let each = side.unwind.fdes.iter().flat_map(|fde| instructions(side, fde.start, fde.end));
            each.filter(|&(address, inst)| wanted(side, address, inst)).nth(skip).unwrap()
        })
    }

    /// The instruction at an address in words, if one byte were another: some bits of an encoding mean nothing.
    fn text(&self, address: u64, byte: Option<(u64, u8)>) -> String {
        use capstone::prelude::*;
        let mut bytes = self.with(|side| side.image.at(address, 15).unwrap().to_vec());
        if let Some((place, byte)) = byte {
            bytes[(place - address) as usize] = byte;
        }
        let engine = Capstone::new().x86().mode(arch::x86::ArchMode::Mode64).build().unwrap();
        let found = engine.disasm_count(&bytes, address, 1).unwrap();
        found
            .iter()
            .next()
            .map(|inst| format!("{:?} {:?} {}", inst.mnemonic(), inst.op_str(), inst.bytes().len()))
            .unwrap_or_default()
    }

    /// The report if the bytes at `address` are other ones.
    fn changed(&self, address: u64, bytes: &[u8]) -> Report {
        self.changed_in_file(self.offset(address), bytes)
    }

    fn changed_in_file(&self, offset: usize, bytes: &[u8]) -> Report {
        let mut output = self.file.clone();
        output[offset..offset + bytes.len()].copy_from_slice(bytes);
        check(&self.file, &output).unwrap()
    }
}

fn instructions<'s>(side: &'s Side<'_>, start: u64, end: u64) -> impl Iterator<Item = (u64, Inst)> + 's {
    let mut address = start;
    std::iter::from_fn(move || {
        let inst = (address < end).then(|| side.inst(address))??;
        address += u64::from(inst.len);
        Some((address - u64::from(inst.len), inst))
    })
}

fn assert_seen(report: &Report, expected: &[ViolationKind]) {
    let kinds = kinds(report);
    assert!(kinds.iter().any(|kind| expected.contains(kind)), "expected one of {expected:?}, found:\n{}", report.summary(10));
}

#[test]
fn a_call_to_another_function_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/gzip") else { return };
    let is_local = |side: &Side<'_>, address, inst: Inst| {
        inst.kind == Kind::Call && inst.len == 5 && side.unwind.fde_at(side.target(address, inst)).is_some()
    };
    let (address, inst) = subject.find(20, is_local);
    let old = subject.with(|side| side.target(address, inst));
    let other = subject.with(|side| side.unwind.fdes.iter().map(|fde| fde.start).find(|&start| start > old).unwrap());
    let displacement = (other.wrapping_sub(address + 5) as u32).to_le_bytes();
    assert_seen(&subject.changed(address + 1, &displacement), &[ViolationKind::Conflict, ViolationKind::InstructionMismatch]);
}

#[test]
fn a_condition_that_is_inverted_alone_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/xz") else { return };
    for skip in [10, 50, 200] {
        let (address, _) = subject.find(skip, |_, _, inst| inst.kind == Kind::Branch && inst.len == 2);
        let opcode = subject.with(|side| side.image.at(address, 1).unwrap()[0]);
        let report = subject.changed(address, &[opcode ^ 1]);
        assert_seen(&report, &[ViolationKind::Conflict, ViolationKind::InstructionMismatch, ViolationKind::UnwindRow]);
        assert_seen(&subject.changed(address, &[opcode ^ 8]), &[ViolationKind::ConditionMismatch]);
    }
}

#[test]
fn another_data_operand_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/xz") else { return };
    let is_data = |side: &Side<'_>, address, inst: Inst| inst.disp != 0 && !side.image.in_code(side.operand(address, inst));
    for skip in [5, 60, 300] {
        let (address, inst) = subject.find(skip, is_data);
        let place = address + u64::from(inst.disp);
        let low = subject.with(|side| side.image.at(place, 1).unwrap()[0]);
        assert_seen(&subject.changed(place, &[low ^ 8]), &[ViolationKind::OperandMismatch]);
    }
}

#[test]
fn a_byte_of_read_only_data_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/xz") else { return };
    let (address, byte) = subject.with(|side| {
        let section = side.image.section(".rodata").unwrap();
        (section.address + 100, side.image.section_bytes(section)[100])
    });
    let report = subject.changed(address, &[byte ^ 0x20]);
    assert_eq!(kinds(&report), [ViolationKind::DataChanged], "{}", report.summary(10));
    assert_eq!(report.violations[0].address, address);
}

#[test]
fn a_jump_table_entry_that_leads_elsewhere_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/gzip") else { return };
    // Of the largest table, entries that differ change places.
    let (place, first, second) = subject.with_known(|known| {
        let side = &known.side;
        let mut walk = Walk::new(known, side);
        data::seed(&mut walk);
        walk.settle();
        let words: Vec<u64> = walk.explained.iter().filter(|&&(_, size)| size == 4).map(|&(place, _)| place).collect();
        let differ = |place: &u64| side.image.u32_at(*place) != side.image.u32_at(place + 4) && words.contains(&(place + 4));
        let place = words.iter().copied().find(differ).unwrap();
        (place, side.image.u32_at(place).unwrap(), side.image.u32_at(place + 4).unwrap())
    });
    let swapped = [second.to_le_bytes(), first.to_le_bytes()].concat();
    assert_seen(&subject.changed(place, &swapped), &[ViolationKind::Conflict, ViolationKind::InstructionMismatch]);
}

#[test]
fn a_relative_relocation_to_another_instruction_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/gzip") else { return };
    // The third word of the entry of `.rela.dyn` that names code.
    let (offset, addend) = subject.with(|side| {
        let section = side.image.section(".rela.dyn").unwrap();
        let bytes = side.image.section_bytes(section);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let is_code =
            |&at: &usize| matches!(side.image.slot(word(at)), Some(Slot::Relative(to)) if side.unwind.fde_at(to).is_some());
        let at = (0..bytes.len()).step_by(24).find(is_code).unwrap();
        (section.offset as usize + at + 16, word(at + 16))
    });
    let next = subject.with(|side| addend + u64::from(side.inst(addend).unwrap().len));
    assert_seen(
        &subject.changed_in_file(offset, &next.to_le_bytes()),
        &[ViolationKind::Conflict, ViolationKind::InstructionMismatch, ViolationKind::UnwindRow],
    );
}

#[test]
fn a_frame_description_that_covers_less_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/gzip") else { return };
    let (place, size) = subject.with(|side| {
        let fde = side.unwind.fdes.iter().filter(|fde| fde.end - fde.start > 64).nth(7).unwrap();
        // Length, CIE, start, size: four bytes each.
        (fde.place + 12, (fde.end - fde.start) as u32)
    });
    assert_seen(&subject.changed(place, &(size / 2).to_le_bytes()), &[ViolationKind::UnwindRow]);
}

#[test]
fn a_landing_pad_that_is_lost_is_seen() {
    let Some(subject) = Subject::new("/usr/lib/x86_64-linux-gnu/libstdc++.so.6") else { return };
    let (offset, byte) = subject.with(|side| {
        let section = side.image.section(".gcc_except_table").unwrap();
        let bytes = side.image.section_bytes(section);
        // ff 9b or ff ff, (types), 01, size, then call sites of start, size, pad, action: the first with a one-byte pad.
        let pad = |at: &usize| {
            bytes[*at..].starts_with(&[0xff, 0xff, 0x01]) && bytes[at + 6] != 0 && bytes[at + 4..at + 7].iter().all(|b| *b < 0x80)
        };
        let at = (0..bytes.len() - 16).find(pad).unwrap() + 6;
        (section.offset as usize + at, bytes[at])
    });
    assert!(byte != 0);
    assert_seen(&subject.changed_in_file(offset, &[0]), &[ViolationKind::CallSite]);
}

#[test]
fn a_segment_that_is_writable_and_executable_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/gzip") else { return };
    let index = subject.with(|side| side.image.elf.program_headers.iter().position(|header| header.p_flags == 5).unwrap());
    let offset = subject.with(|side| side.image.elf.header.e_phoff as usize) + index * 56 + 4;
    assert_seen(&subject.changed_in_file(offset, &[7]), &[ViolationKind::Segment]);
}

/// A branch into the padding before its target does the same.
fn leads_to_padding(subject: &Subject, place: u64, byte: u8, (address, inst): (u64, Inst)) -> bool {
    let mut output = subject.file.clone();
    output[subject.offset(place)] = byte;
    let changed = Subject { file: output };
    let is_branch = matches!(inst.kind, Kind::Branch | Kind::Call);
    is_branch && changed.with(|side| side.inst(side.target(address, inst)).is_some_and(|target| target.kind == Kind::Nop))
}

#[test]
fn any_flipped_bit_of_any_instruction_is_seen() {
    let Some(subject) = Subject::new("/usr/bin/bzip2") else { return };
    let places: Vec<(u64, Inst)> = subject.with(|side| {
        let each = side.unwind.fdes.iter().flat_map(|fde| instructions(side, fde.start, fde.end));
        each.filter(|(_, inst)| !matches!(inst.kind, Kind::Nop | Kind::Trap | Kind::Jump)).collect()
    });
    let mut random = 1u64;
    for _ in 0..150 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (address, inst) = places[(random >> 33) as usize % places.len()];
        let place = address + (random >> 20) % u64::from(inst.len);
        let byte = subject.with(|side| side.image.at(place, 1).unwrap()[0]);
        if subject.text(address, None) == subject.text(address, Some((place, byte ^ 1 << (random >> 50 & 7)))) {
            continue;
        }
        let report = subject.changed(place, &[byte ^ 1 << (random >> 50 & 7)]);
        if leads_to_padding(&subject, place, byte ^ 1 << (random >> 50 & 7), (address, inst)) {
            continue;
        }
        assert!(!report.is_ok(), "bit {} of {place:#x}, in the instruction at {address:#x}", random >> 50 & 7);
    }
}
