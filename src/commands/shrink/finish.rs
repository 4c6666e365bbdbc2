//! From new code to a new file: the loader's tables packed, offsets chosen anew.

use std::borrow::Cow;
use std::path::Path;

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::DynReloc;
use lifter::ir::RefTarget;
use rewriter::relink::NewDebugFile;
use rewriter::shrink::{cuts, debug_link, home, own_loader, pack, remains, spread, tables};

use super::Job;
use super::code::Code;
use crate::args::shrink::{Pack, Relr, Shrink, Technique};
use crate::driver::Lifted;
use crate::failure::Result;
use crate::files;
use crate::report::shrink::Saving;
use crate::timing::Timing;

/// What is known of a program's data.
#[derive(Default)]
pub(super) struct Known {
    /// Addresses that code or a relocated word holds, ascending; not known in a file at a fixed address.
    named: Option<Vec<Va>>,
    /// The program relocates itself, and reads packed relocations.
    reads_relr: bool,
    /// There is nobody else who could.
    may_relocate_itself: bool,
}

impl Known {
    pub(super) fn of(lifted: &Lifted<'_>) -> Self {
        let named = lifted.program.is_replaceable().then(|| named_data(lifted));
        let reads_relr = own_loader::reads_packed_relocations(&lifted.image, &lifted.program);
        Self { named, reads_relr, may_relocate_itself: own_loader::is_alone(&lifted.image) }
    }
}

/// A file as it may be written.
pub(super) struct Finished {
    pub(super) bytes: Vec<u8>,
    /// By block, if these are asked for, where it went.
    pub(super) blocks: Vec<(Va, u32)>,
    pub(super) savings: Vec<Saving>,
    pub(super) dropped_sections: Vec<String>,
    /// What is true of the code; its headers are those of a file before this one. `None` where the input's debug file is true.
    pub(super) debug_file: Option<NewDebugFile>,
    /// Whether offsets could change.
    pub(super) is_packed: bool,
    /// Section headers stay although they need not, because the file is shorter with them.
    pub(super) keeps_headers: bool,
    pub(super) num_cuts: u64,
    pub(super) cut_bytes: u64,
}

impl Finished {
    /// Where nothing pays.
    pub(super) fn unchanged(job: Job<'_>) -> Self {
        let (savings, dropped_sections) = (Vec::new(), Vec::new());
        let bytes = job.unchanged.to_vec();
        Self {
            bytes,
            blocks: Vec::new(),
            savings,
            dropped_sections,
            debug_file: None,
            is_packed: false,
            keeps_headers: false,
            num_cuts: 0,
            cut_bytes: 0,
        }
    }

    /// Bytes that nothing needs and that are in the file all the same, less what holes gave back.
    pub(super) fn lost(&self, input: &[u8]) -> i64 {
        let freed: i64 = self.savings.iter().map(|saving| saving.bytes).sum();
        freed - (input.len() as i64 - self.bytes.len() as i64)
    }
}

/// Makes the file of what became of its code, or of the file as it was. Each step reads the file that the one before has made, which then goes.
pub(super) fn finish(job: Job<'_>, code: Option<Code>, known: &Known, timing: &mut Timing) -> Result<Finished> {
    let Job { args, unchanged, .. } = job;
    let mut blocks = Vec::new();
    let (mut changed, mut free, mut savings, dropped_sections, debug_file) = match code {
        Some(Code { relinked, savings }) => {
            blocks = relinked.blocks;
            (Cow::Owned(relinked.bytes), relinked.free, savings, relinked.dropped_sections, relinked.debug_file)
        }
        None => (Cow::Borrowed(unchanged), Vec::new(), Vec::new(), Vec::new(), None),
    };
    let wants_holes = args.is_on(Technique::Holes);
    if let Some(named) = known.named.as_ref().filter(|_| wants_holes) {
        if let Ok(image) = Image::parse(&changed) {
            let without_tables = remains::add(&image, named, &mut free);
            changed = without_tables.map_or(changed, Cow::Owned);
        }
        if let Some(home) = home::bring_home(&changed, named, &free) {
            (changed, free) = (Cow::Owned(home.bytes), home.free);
        }
    }
    let split = if args.is_on(Technique::Cuts) && wants_holes { cuts::split_sections(&changed, &free) } else { None };
    changed = split.map_or(changed, Cow::Owned);
    let repacked = known
        .named
        .as_ref()
        .and_then(|named| timing.phase("pack the loader's tables", |_| repack(args, &changed, &free, named, known)));
    if let Some(repacked) = repacked {
        changed = Cow::Owned(repacked.bytes);
        free = repacked.free;
        savings.push(Saving::new("relr", "relocations", repacked.num_relocations, repacked.relr_bytes as i64));
        savings.push(Saving::new("hash", "bytes", repacked.hash_bytes, repacked.hash_bytes as i64));
    }
    // Tables may lie among code only where section headers tell them from it: that can save more than these take.
    let with_headers = match job.strips_headers {
        true => Some(packed(Job { strips_headers: false, ..job }, Cow::Borrowed(&changed), &free, known, timing)?),
        false => None,
    };
    let without = packed(job, changed, &free, known, timing)?;
    let shorter = with_headers.filter(|with_headers| with_headers.bytes.len() < without.bytes.len());
    let keeps_headers = shorter.is_some();
    let Last { bytes, stripped, is_packed, num_cuts, cut_bytes } = shorter.unwrap_or(without);
    savings.extend(stripped);
    Ok(Finished { bytes, blocks, savings, dropped_sections, debug_file, is_packed, keeps_headers, num_cuts, cut_bytes })
}

/// Packs the loader's tables. Of a program that may apply its relocations itself it is tried whether it applies packed ones: what the check asks, too.
fn repack(args: &Shrink, bytes: &[u8], free: &[(Va, Va)], named: &[Va], known: &Known) -> Option<tables::Repacked> {
    let as_known = table_options(args, known.reads_relr);
    if !known.may_relocate_itself || known.reads_relr || args.relr == Relr::Off {
        return tables::repack(bytes, named, free, as_known);
    }
    let packed = tables::repack(bytes, named, free, table_options(args, true));
    let applies_them = |packed: &tables::Repacked| checker::relocates_itself(&packed.bytes).unwrap_or(false);
    match packed.filter(|packed| packed.num_relocations == 0 || applies_them(packed)) {
        Some(packed) => Some(packed),
        None => tables::repack(bytes, named, free, as_known),
    }
}

/// What the last steps make.
struct Last {
    bytes: Vec<u8>,
    stripped: Option<Saving>,
    is_packed: bool,
    num_cuts: u64,
    cut_bytes: u64,
}

/// Tables go where they take least room, what no loader reads goes out, and what is left is packed.
fn packed(job: Job<'_>, bytes: Cow<'_, [u8]>, free: &[(Va, Va)], known: &Known, timing: &mut Timing) -> Result<Last> {
    let args = job.args;
    if !args.is_on(Technique::Holes) {
        return Ok(Last { bytes: bytes.into_owned(), stripped: None, is_packed: false, num_cuts: 0, cut_bytes: 0 });
    }
    let (mut changed, mut free, mut stripped) = (bytes, Cow::Borrowed(free), None);
    let named = known.named.as_ref().filter(|_| args.is_on(Technique::Spread));
    let spread =
        named.and_then(|named| timing.phase("spread the tables", |_| spread::spread(&changed, &free, named, options(job))));
    if let Some((bytes, rest)) = spread {
        (changed, free) = (Cow::Owned(bytes), Cow::Owned(rest));
    }
    if args.strip {
        changed = strip(job, changed, &mut stripped);
    }
    let packed = timing.phase("pack the file", |_| pack::pack(&changed, &free, options(job)));
    let packed = packed.map_err(|error| crate::failure::from_rewriter(&args.rewrite.input, &error))?;
    let (num_cuts, cut_bytes) = packed.as_ref().map_or((0, 0), |packed| (packed.num_cuts as u64, packed.cut_bytes));
    let is_packed = packed.is_some();
    let bytes = packed.map_or_else(|| changed.into_owned(), |packed| packed.bytes);
    Ok(Last { bytes, stripped, is_packed, num_cuts, cut_bytes })
}

/// Addresses that code or a relocated word holds, ascending.
fn named_data(lifted: &Lifted<'_>) -> Vec<Va> {
    let fixed = lifted.program.refs.iter().filter_map(|reference| match reference.target {
        RefTarget::Fixed(va) => Some(va),
        _ => None,
    });
    let words = lifted.image.dynamic_relocs.iter().filter_map(DynReloc::own_address);
    let mut named: Vec<Va> = fixed.chain(words).collect();
    named.sort_unstable();
    named.dedup();
    named
}

fn table_options(args: &Shrink, reads_relr: bool) -> tables::Options {
    let wanted = match args.relr {
        Relr::On => true,
        Relr::Off => false,
        Relr::Auto => reads_relr || system_reads_relr(),
    };
    let is_packed = args.is_on(Technique::Holes);
    tables::Options {
        relr: wanted && is_packed && args.is_on(Technique::Relr),
        reads_relr,
        hash: is_packed && args.is_on(Technique::Hash),
        cuts: is_packed && args.is_on(Technique::Cuts),
    }
}

/// Whether the C library of this machine knows the version by which a file asks for a loader that reads packed relocations.
fn system_reads_relr() -> bool {
    const FOLDERS: [&str; 4] = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
    let libc = FOLDERS.iter().map(|folder| Path::new(folder).join("libc.so.6")).find(|path| path.is_file());
    let bytes = libc.and_then(|path| files::read(&path).ok());
    bytes.is_some_and(|bytes| memchr::memmem::find(&bytes, b"\0GLIBC_ABI_DT_RELR\0").is_some())
}

/// Leaves out what `--strip` does, as far as that is not left to the packer: section headers go last.
fn strip<'b>(job: Job<'_>, bytes: Cow<'b, [u8]>, stripped: &mut Option<Saving>) -> Cow<'b, [u8]> {
    if job.strips_headers {
        *stripped = Some(unloaded(&bytes));
        return bytes;
    }
    let Some(less) = debug_link::strip(&bytes) else { return bytes };
    *stripped = Some(Saving::new("strip", "sections", less.num_sections, less.num_bytes as i64));
    Cow::Owned(less.bytes)
}

/// Sections that no loader reads, and the headers of all.
fn unloaded(bytes: &[u8]) -> Saving {
    let Ok(image) = Image::parse(bytes) else { return Saving::new("strip", "bytes", 0, 0) };
    let has_headers = image.has_section_headers;
    let sections = image.sections.values().filter(|section| has_headers && !section.is_alloc() && section.has_bytes());
    let count = if has_headers { image.sections.len() as u64 } else { 0 };
    let size = sections.map(|section| section.sh_size).sum::<u64>() + 64 * count;
    Saving::new("strip", "bytes", size, size as i64)
}

fn options(job: Job<'_>) -> pack::Options {
    let sharing = if job.args.pack == Pack::Tight { pack::Sharing::Tight } else { pack::Sharing::Safe };
    pack::Options { sharing, strip: job.strips_headers, cuts: job.args.is_on(Technique::Cuts) }
}
