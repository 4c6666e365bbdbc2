//! Room in the middle of the file for what no loader reads.
//!
//! **Problem.** Tools that enlarge a file (patchelf) append a segment. Symbols and strings then lie between segments, and since no loaded byte changes its place in the file, the bytes of the old ones would
//! be in the output besides the new ones: a fifth of PyTorch's library.
//!
//! **Method.** What the input's section headers give to sections that are not loaded, and the headers themselves, is free, but for what any segment or header of the output lies on. Contents go there, the
//! largest first, each into the smallest room that takes it, and behind everything otherwise. What is left of the rooms is cleared. Other bytes between segments may be somebody's payload: they stay.

use lifter::Image;
use lifter::elf::image::Segment;

use super::{headers, space};

/// Bytes of an `Elf64_Ehdr`.
const FILE_HEADER: u64 = 64;

/// The parts of a file that are free, by place: start and end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rooms(Vec<(u64, u64)>);

impl Rooms {
    /// Of an output with these segments, as far as it is there already: up to `end`.
    pub(crate) fn of(image: &Image<'_>, segments: &[Segment], end: u64) -> Self {
        let sections = image.sections.values().filter(|s| !s.is_alloc() && s.has_bytes());
        let mut free: Vec<(u64, u64)> = sections.map(|s| (s.sh_offset.0, s.sh_offset.0.saturating_add(s.sh_size))).collect();
        free.extend(super::section_headers(image));
        let table = (image.e_phoff.0, image.e_phoff.0 + headers::ENTRY * segments.len() as u64);
        let mut used: Vec<(u64, u64)> =
            segments.iter().map(|s| (s.p_offset.0, s.p_offset.0.saturating_add(s.p_filesz))).collect();
        used.extend([(0, FILE_HEADER), table, (end, u64::MAX)]);
        used.sort_unstable();
        let mut rooms = Vec::new();
        let mut at = 0;
        for (start, end) in space::joined(free) {
            at = start.max(at);
            for &(used_start, used_end) in &used {
                if used_start >= end {
                    break;
                }
                if at < used_start {
                    rooms.push((at, used_start));
                }
                at = at.max(used_end);
            }
            if at < end {
                rooms.push((at, end));
                at = end;
            }
        }
        Self(space::joined(rooms))
    }

    /// Takes a place for so many bytes out of the smallest room that has one.
    pub(crate) fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let starts_at = |&(start, end): &(u64, u64)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(size)? <= end).then_some(at)
        };
        let fitting = self.0.iter().enumerate().filter(|(_, room)| starts_at(room).is_some());
        let (index, room) = fitting.min_by_key(|(_, room)| room.1 - room.0)?;
        let (at, end) = (starts_at(room)?, room.1);
        self.0[index] = (at + size, end);
        Some(at)
    }

    /// Clears them.
    pub(crate) fn clear(&self, file: &mut [u8]) {
        for &(start, end) in &self.0 {
            if let Some(room) = file.get_mut(start as usize..end as usize) {
                room.fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_go_into_the_smallest_room_that_takes_them() {
        let mut rooms = Rooms(vec![(100, 200), (300, 330)]);
        assert_eq!(rooms.take(20, 8), Some(304));
        assert_eq!(rooms.take(20, 8), Some(104));
        assert_eq!(rooms.take(77, 1), None);
        assert_eq!(rooms.take(76, 1), Some(124));
        assert_eq!(rooms.take(6, 1), Some(324));
        assert_eq!(rooms.take(1, 1), None);
    }

    #[test]
    fn what_is_left_of_rooms_is_cleared() {
        let mut rooms = Rooms(vec![(2, 6)]);
        let mut file = [1u8; 8];
        assert_eq!(rooms.take(1, 1), Some(2));
        rooms.clear(&mut file);
        assert_eq!(file, [1, 1, 1, 0, 0, 0, 1, 1]);
    }
}
