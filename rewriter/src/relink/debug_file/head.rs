//! What a debug file begins with: the headers of its output's segments, and notes.

use lifter::address::{FileOffset, Va};
use lifter::elf::image::Segment;
use object::elf;

use super::super::headers;
use super::super::sections::{ContentPlace, OutSection};
use super::Output;

const FILE_HEADER: usize = 64;
/// Notes that lie no further behind the headers keep their offsets.
const GAP_MAX: u64 = 1 << 16;

/// What a debug file begins with: headers and notes.
pub(super) struct Head {
    pub(super) bytes: Vec<u8>,
    pub(super) notes: Vec<Note>,
    pub(super) segments: Vec<Segment>,
}

/// A section of notes.
#[derive(Copy, Clone)]
pub(super) struct Note {
    pub(super) address: Va,
    size: u64,
    /// In the output, and in the debug file.
    from: u64,
    pub(super) to: u64,
}

impl Note {
    fn end(&self) -> Va {
        self.address + self.size
    }
}

impl Head {
    pub(super) fn of(output: Output<'_, '_>) -> Self {
        let mut bytes = vec![0; FILE_HEADER + headers::encode(output.segments).len()];
        let notes = output.sections.iter().filter(|s| s.is_alloc() && s.sh_type == elf::SHT_NOTE && s.sh_size > 0);
        let notes = notes.filter_map(|section| copy_note(section, output.bytes, &mut bytes)).collect();
        let mut head = Head { bytes, notes, segments: Vec::new() };
        head.segments = output.segments.iter().map(|segment| head.segment(segment)).collect();
        let encoded = headers::encode(&head.segments);
        head.bytes[..FILE_HEADER].copy_from_slice(&output.image.bytes[..FILE_HEADER]);
        head.bytes[32..40].copy_from_slice(&(FILE_HEADER as u64).to_le_bytes());
        head.bytes[56..58].copy_from_slice(&(head.segments.len() as u16).to_le_bytes());
        head.bytes[FILE_HEADER..FILE_HEADER + encoded.len()].copy_from_slice(&encoded);
        head
    }

    /// A program header of the output, as far as there are bytes for it.
    fn segment(&self, segment: &Segment) -> Segment {
        let within = |note: &&Note| segment.p_vaddr <= note.address && note.end() <= segment.end();
        let mut notes = self.notes.iter().filter(within).peekable();
        let (first, last) = (notes.peek().copied(), notes.last());
        let without = Segment {
            p_offset: FileOffset(segment.p_vaddr.0.checked_rem(segment.p_align).unwrap_or(0)),
            p_filesz: 0,
            ..*segment
        };
        match (segment.p_type, first, last) {
            (elf::PT_PHDR, ..) => Segment { p_offset: FileOffset(FILE_HEADER as u64), ..*segment },
            // The headers are part of it.
            (elf::PT_LOAD, _, Some(last)) if last.to == last.from && segment.p_offset.0 == 0 => {
                Segment { p_filesz: last.to + last.size, ..*segment }
            }
            (elf::PT_NOTE | elf::PT_GNU_PROPERTY, Some(first), Some(last))
                if first.address == segment.p_vaddr && last.to - first.to == last.address - first.address =>
            {
                let size = last.end() - first.address;
                Segment { p_offset: FileOffset(first.to), p_filesz: size, p_memsz: size, ..*segment }
            }
            _ => without,
        }
    }

    /// Where a piece of notes is in the debug file.
    pub(super) fn place_of(&self, offset: FileOffset, len: usize) -> Option<usize> {
        let holds = |note: &&Note| note.from <= offset.0 && offset.0 + len as u64 <= note.from + note.size;
        self.notes.iter().find(holds).map(|note| (note.to + (offset.0 - note.from)) as usize)
    }
}

/// Appends a section of notes, at the offset that it has in the output if that is near.
fn copy_note(section: &OutSection<'_>, file: &[u8], bytes: &mut Vec<u8>) -> Option<Note> {
    let ContentPlace::Loaded(FileOffset(from)) = section.place else { return None };
    let contents = file.get(from as usize..from.checked_add(section.sh_size)? as usize)?;
    let end = bytes.len() as u64;
    let is_near = end <= from && from - end < GAP_MAX;
    let to = if is_near { from } else { end.next_multiple_of(section.sh_addralign.clamp(1, 16)) };
    bytes.resize(to as usize, 0);
    bytes.extend_from_slice(contents);
    Some(Note { address: section.sh_addr, size: section.sh_size, from, to })
}
