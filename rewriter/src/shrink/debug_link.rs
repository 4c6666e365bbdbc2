//! The link to a separate debug file, in a program that is not relinked or of which little is to be left.
//!
//! **Method.** A link of the same length is written over, a new one takes the place of another among what no loader reads. Debuggers find the link by its section, and
//! count with the places of all others: so section headers stay where all goes that neither they nor a loader needs. So they do where the program reads sections of its own ([`unloaded`]).
//!
//! Source: GDB's manual, "Debugging Information in Separate Files".

use lifter::Image;
use lifter::elf::image::SectionData;
use lifter::entity::{EntityId, Section};

use super::pack;
use super::section_table::SectionEdit;
use super::unloaded;
use crate::error::{Error, Result};
use crate::relink::debug_file::{LINK_ALIGN, link_bytes};
use crate::relink::{self, LINK, space};

/// The file with a link to a debug file of this name, whose checksum is not known yet.
///
/// # Errors
/// If something counts on where the file's parts are.
pub fn with_link(bytes: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    let unreadable = |error| Error::Inconsistent(format!("it can't be read again: {error}"));
    let image = Image::parse(bytes).map_err(unreadable)?;
    let content = link_bytes(name);
    let old = image.section_named(LINK);
    if let Some(same) = old.map(|id| &image.sections[id]).filter(|old| old.has_bytes() && old.sh_size == content.len() as u64) {
        let mut out = bytes.to_vec();
        out[same.sh_offset.0 as usize..][..content.len()].copy_from_slice(&content);
        return Ok(out);
    }
    if let Some((at, _)) = relink::payload_behind(&image) {
        return Err(Error::TrailingPayload { at, excess: content.len() as u64 });
    }
    added(&image, old, &content).ok_or_else(|| Error::Inconsistent("its section headers have no names".into()))
}

/// Behind everything but the section headers and their names, which are written anew.
fn added(image: &Image<'_>, old: Option<Section>, content: &[u8]) -> Option<Vec<u8>> {
    let mut edit = SectionEdit::new(image, image.bytes)?;
    let is_kept = |id: Section, section: &SectionData<'_>| section.has_bytes() && Some(id) != old && !edit.is_names(id);
    let ends = image.sections.iter().filter(|&(id, section)| is_kept(id, section)).map(|(_, s)| s.sh_offset.0 + s.sh_size);
    let end = ends.chain([space::loaded_file_end(image)]).max()?.next_multiple_of(LINK_ALIGN);
    let mut out = image.bytes.get(..(end as usize).min(image.bytes.len()))?.to_vec();
    out.resize(end as usize, 0);
    out.extend_from_slice(content);
    edit.add_unloaded(LINK, old, LINK_ALIGN, end, content.len() as u64);
    edit.write(out)
}

/// What [`strip`] left.
#[derive(Clone, Debug)]
pub struct Stripped {
    pub bytes: Vec<u8>,
    /// Sections that are gone, and their bytes and headers.
    pub num_sections: u64,
    pub num_bytes: u64,
}

/// Leaves out what is not loaded, but for the link, what the program may read itself, and the headers of sections; `None` where there is nothing else, or where all has to stay.
pub fn strip(bytes: &[u8]) -> Option<Stripped> {
    let image = Image::parse(bytes).ok().filter(|image| image.has_section_headers && pack::may_move(image))?;
    let mut edit = SectionEdit::new(&image, bytes)?;
    let is_idle = |(id, section): &(Section, &SectionData<'_>)| {
        id.index() > 0 && !section.is_alloc() && section.name != LINK && !edit.is_names(*id) && !unloaded::is_own(section)
    };
    let idle: Vec<(Section, &SectionData<'_>)> = image.sections.iter().filter(is_idle).collect();
    let size = |section: &SectionData<'_>| if section.has_bytes() { section.sh_size } else { 0 };
    let num_bytes = idle.iter().map(|(_, section)| size(section) + SectionEdit::HEADER_BYTES).sum();
    idle.iter().for_each(|(id, _)| edit.remove(*id));
    let num_sections = idle.len() as u64;
    if num_sections == 0 {
        return None;
    }
    Some(Stripped { bytes: edit.write(bytes.to_vec())?, num_sections, num_bytes })
}
