//! The dynamic section and the tables that it names: a loader must find the same in the output, wherever that lies.
//!
//! **Method.** Entries that mean something by themselves are compared one by one, in order. Those that say where a table is and how long are
//! compared by what is there: strings are the input's with more behind them, versions the same by index and name, hash tables the same bytes;
//! relocations are compared word by word elsewhere ([`crate::data`]), packed or not. An output with packed relocations that the input has not must ask its C
//! library for the version by which an old one refuses the file, or be a program that reads them itself ([`crate::own_loader`]) or is seen to relocate itself when it is run ([`relocates_itself`]). Such a program may lack what says nothing to it: that it binds at once, where
//! another entry says so too, and a hash table of no symbols. Relocations in Android's form are not read: where a file has some,
//! no code may have changed, for they may lead anywhere.

use std::cell::LazyCell;

use goblin::elf::dynamic::{
    DF_1_NOW, DF_BIND_NOW, DT_DEBUG, DT_FINI, DT_FLAGS, DT_FLAGS_1, DT_GNU_HASH, DT_HASH, DT_INIT, DT_JMPREL, DT_NULL, DT_RELA,
    DT_RELACOUNT, DT_RELASZ, DT_STRSZ, DT_STRTAB, DT_SYMTAB, DT_VERDEF, DT_VERNEED, DT_VERSYM, Dyn,
};

use crate::code_model::keeps_code;
use crate::image::{DT_RELR, DT_RELRSZ, Image, Slot};
use crate::own_loader;
use crate::prove::relocates_itself;
use crate::report::{Violation, ViolationKind};
use crate::walk::Side;

const DT_RELRENT: u64 = 37;
const R_X86_64_RELATIVE: u64 = 8;
/// Bytes of an `Elf64_Rela`.
const RELA: u64 = 24;
/// Compared by what they lead to.
const TABLES: [u64; 13] = [
    DT_HASH,
    DT_GNU_HASH,
    DT_SYMTAB,
    DT_STRTAB,
    DT_STRSZ,
    DT_VERSYM,
    DT_VERNEED,
    DT_VERDEF,
    DT_RELA,
    DT_RELASZ,
    DT_RELACOUNT,
    DT_JMPREL,
    DT_RELR,
];
/// `DT_ANDROID_REL`, `DT_ANDROID_RELA` and `DT_ANDROID_RELR`: tables that Android's loader reads, and nothing here.
const ANDROID_RELOCATIONS: [u64; 3] = [0x6000_000f, 0x6000_0011, 0x6fff_e000];
const DT_RELR_VERSION: &[u8] = b"GLIBC_ABI_DT_RELR";

/// Compares what two loaders are told.
pub(crate) fn compare(input: &Side<'_>, output: &Side<'_>, violations: &mut Vec<Violation>) {
    let (a, b) = (&input.image, &output.image);
    let mut report = |message: String| violations.push(Violation::new(ViolationKind::Dynamic, 0, message));
    let (x, y) = match (&a.elf.dynamic, &b.elf.dynamic) {
        (None, None) => return,
        (Some(x), Some(y)) => (&x.dyns, &y.dyns),
        _ => return report("one of the files has no dynamic section".into()),
    };
    let by_value = |entry: &&Dyn| !TABLES.contains(&entry.d_tag) && ![DT_NULL, DT_RELRSZ, DT_RELRENT].contains(&entry.d_tag);
    let relocates = LazyCell::new(|| own_loader::reads_packed_relocations(input) || relocates_itself(output));
    let says_nothing =
        |entry: &&Dyn| entry.d_tag == DT_FLAGS && b.dynamic_value(DT_FLAGS).is_none() && may_lack(a, DT_FLAGS) && *relocates;
    let mut from = x.iter().filter(by_value).filter(|entry| !says_nothing(entry));
    let mut to = y.iter().filter(by_value);
    loop {
        match (from.next(), to.next()) {
            (None, None) => break,
            (Some(from), Some(to)) if from.d_tag == to.d_tag => {
                // The functions are pairs of the walk; DT_DEBUG is the loader's.
                let is_free = [DT_INIT, DT_FINI, DT_DEBUG].contains(&from.d_tag);
                if from.d_val != to.d_val && !is_free {
                    report(format!("tag {:#x} is {:#x}; the input has {:#x}", to.d_tag, to.d_val, from.d_val));
                }
            }
            (from, to) => {
                let tag = |entry: Option<&Dyn>| entry.map_or(DT_NULL, |entry| entry.d_tag);
                report(format!("tag {:#x}; the input has {:#x}", tag(to), tag(from)));
                break;
            }
        }
    }
    for tag in TABLES.into_iter().chain([DT_RELRSZ, DT_RELRENT]) {
        if y.iter().filter(|entry| entry.d_tag == tag).count() > 1 {
            report(format!("tag {tag:#x} occurs twice"));
        }
    }
    for problem in table_problems(input, output, &|| *relocates) {
        report(problem);
    }
}

fn table_problems(input: &Side<'_>, output: &Side<'_>, relocates: &dyn Fn() -> bool) -> Vec<String> {
    let (a, b) = (&input.image, &output.image);
    let mut problems = Vec::new();
    for tag in TABLES.into_iter().filter(|&tag| ![DT_RELACOUNT, DT_RELR].contains(&tag)) {
        // A loader that has the newer kind of hash table does not use the older one.
        let is_spare = tag == DT_HASH && a.dynamic_value(DT_GNU_HASH).is_some();
        let is_lost = a.dynamic_value(tag).is_some() && b.dynamic_value(tag).is_none();
        let is_new = a.dynamic_value(tag).is_none() && b.dynamic_value(tag).is_some();
        if is_new || is_lost && !is_spare && !(may_lack(a, tag) && relocates()) {
            problems.push(format!("tag {tag:#x} is lost or new"));
        }
        if !agrees_with_section(a, tag) || agrees_with_section(b, tag) {
            continue;
        }
        problems.push(format!("tag {tag:#x} does not lead to the section of its table"));
    }
    for tag in [DT_HASH, DT_GNU_HASH] {
        let bytes = |image: &Image<'_>| image.loader_table(tag).map(|(_, bytes)| bytes.to_vec());
        if b.dynamic_value(tag).is_some() && bytes(a) != bytes(b) {
            problems.push(format!("the hash table of tag {tag:#x} differs"));
        }
    }
    if !strings(b).is_some_and(|after| strings(a).is_some_and(|before| after.starts_with(before))) && strings(a) != strings(b) {
        problems.push("the strings of the dynamic section differ".into());
    }
    if versions_of_symbols(a) != versions_of_symbols(b) {
        problems.push("the versions of the dynamic symbols differ".into());
    }
    match (definitions(a), definitions(b)) {
        (Some(before), Some(after)) if before == after => {}
        (None, None) => {}
        _ => problems.push("the versions that are defined differ".into()),
    }
    if ANDROID_RELOCATIONS.iter().any(|&tag| a.dynamic_value(tag).is_some()) && !keeps_code(input, output) {
        problems.push("relocations in Android's form lead to code that has changed".into());
    }
    problems.extend(need_problem(a, b, relocates));
    problems.extend(relocation_problems(a, b));
    problems
}

/// Whether an entry says nothing to a program that relocates itself.
fn may_lack(image: &Image<'_>, tag: u64) -> bool {
    match tag {
        DT_FLAGS => {
            image.dynamic_value(DT_FLAGS) == Some(DF_BIND_NOW)
                && image.dynamic_value(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_NOW != 0)
        }
        // The first symbol is none.
        DT_GNU_HASH => image.elf.dynsyms.len() <= 1,
        _ => false,
    }
}

/// Whether a tag leads to the start of a section of a table's kind, where there are sections.
fn agrees_with_section(image: &Image<'_>, tag: u64) -> bool {
    let is_address = ![DT_STRSZ, DT_RELASZ].contains(&tag);
    let Some(address) = image.dynamic_value(tag).filter(|_| is_address && !image.sections.is_empty()) else { return true };
    image.sections.iter().any(|section| section.is_alloc() && section.address == address)
}

fn strings<'a>(image: &Image<'a>) -> Option<&'a [u8]> {
    image.at(image.dynamic_value(DT_STRTAB)?, usize::try_from(image.dynamic_value(DT_STRSZ)?).ok()?)
}

fn versions_of_symbols<'a>(image: &Image<'a>) -> Option<&'a [u8]> {
    image.at(image.dynamic_value(DT_VERSYM)?, 2 * image.elf.dynsyms.len())
}

fn half(image: &Image<'_>, address: u64) -> Option<u16> {
    Some(u16::from_le_bytes(image.at(address, 2)?.try_into().ok()?))
}

fn string<'a>(image: &Image<'a>, offset: u32) -> Option<&'a [u8]> {
    strings(image)?.get(offset as usize..)?.split(|&byte| byte == 0).next()
}

/// How many records of versions the file has room for: chains of more go round in a circle.
fn records_max(image: &Image<'_>) -> usize {
    /// The smallest one: a name and where the next one is.
    const RECORD: usize = 8;
    image.bytes.len() / RECORD
}

/// Flags, index, hash and names of each version that is defined.
type Definition<'a> = (u16, u16, u32, Vec<&'a [u8]>);

fn definitions<'a>(image: &Image<'a>) -> Option<Vec<Definition<'a>>> {
    let mut at = image.dynamic_value(DT_VERDEF)?;
    let (mut found, mut left) = (Vec::new(), records_max(image));
    loop {
        left = left.checked_sub(1)?;
        let mut aux = at.checked_add(u64::from(image.u32_at(at + 12)?))?;
        let mut names = Vec::new();
        for _ in 0..half(image, at + 6)? {
            left = left.checked_sub(1)?;
            names.push(string(image, image.u32_at(aux)?)?);
            aux = aux.checked_add(u64::from(image.u32_at(aux + 4)?))?;
        }
        found.push((half(image, at + 2)?, half(image, at + 4)?, image.u32_at(at + 8)?, names));
        match image.u32_at(at + 16)? {
            0 => return Some(found),
            next => at = at.checked_add(u64::from(next))?,
        }
    }
}

/// A version that is needed: library, hash, flags, index, name.
type Need<'a> = (&'a [u8], u32, u16, u16, &'a [u8]);

fn needs<'a>(image: &Image<'a>) -> Option<Vec<Need<'a>>> {
    let mut at = image.dynamic_value(DT_VERNEED)?;
    let (mut found, mut left) = (Vec::new(), records_max(image));
    loop {
        left = left.checked_sub(1)?;
        let library = string(image, image.u32_at(at + 4)?)?;
        let mut aux = at.checked_add(u64::from(image.u32_at(at + 8)?))?;
        for _ in 0..half(image, at + 2)? {
            left = left.checked_sub(1)?;
            let name = string(image, image.u32_at(aux + 8)?)?;
            found.push((library, image.u32_at(aux)?, half(image, aux + 4)?, half(image, aux + 6)?, name));
            aux = aux.checked_add(u64::from(image.u32_at(aux + 12)?))?;
        }
        match image.u32_at(at + 12)? {
            0 => return Some(found),
            next => at = at.checked_add(u64::from(next))?,
        }
    }
}

fn need_problem(a: &Image<'_>, b: &Image<'_>, relocates: &dyn Fn() -> bool) -> Option<String> {
    let (before, after) = (needs(a), needs(b));
    let asks = |needs: &Option<Vec<Need<'_>>>| {
        needs.iter().flatten().any(|need| need.0.starts_with(b"libc.so.") && need.4 == DT_RELR_VERSION)
    };
    let is_new = b.dynamic_value(DT_RELR).is_some() && a.dynamic_value(DT_RELR).is_none();
    if is_new && !asks(&after) && !relocates() {
        return Some("relocations are packed, and nothing keeps a loader away that can't read them".into());
    }
    if before == after {
        return None;
    }
    let (Some(before), Some(mut after)) = (before, after) else { return Some("the versions that are needed are lost".into()) };
    if is_new && !asks(&Some(before.clone())) {
        // The hash of the gABI, as the loader computes it.
        let hash = DT_RELR_VERSION.iter().fold(0u32, |hash, &byte| {
            let hash = (hash << 4).wrapping_add(u32::from(byte));
            (hash ^ ((hash >> 24) & 0xf0)) & 0x0fff_ffff
        });
        let position = after.iter().position(|need| need.4 == DT_RELR_VERSION && need.1 == hash && need.2 == 0);
        let added = position.map(|position| after.remove(position));
        if let Some(added) = added
            && after.iter().any(|need| need.3 & 0x7fff == added.3 & 0x7fff)
        {
            return Some("a version has another one's index".into());
        }
    }
    (before != after).then(|| "the versions that are needed differ".into())
}

/// The loader's own counts of relocations.
fn relocation_problems(a: &Image<'_>, b: &Image<'_>) -> Vec<String> {
    let mut problems = Vec::new();
    let (table, size) = (b.dynamic_value(DT_RELA), b.dynamic_value(DT_RELASZ));
    if let (Some(table), Some(count)) = (table, b.dynamic_value(DT_RELACOUNT)) {
        let is_relative = |index: u64| {
            let info = index.checked_mul(RELA).and_then(|at| table.checked_add(at)?.checked_add(8));
            info.and_then(|at| b.u64_at(at)) == Some(R_X86_64_RELATIVE)
        };
        if count.checked_mul(RELA).is_none_or(|bytes| bytes > size.unwrap_or(0)) || !(0..count).all(is_relative) {
            problems.push("the count of relative relocations is wrong".into());
        }
    }
    if b.dynamic_value(DT_RELR).is_some() {
        let size = b.dynamic_value(DT_RELRSZ).unwrap_or(0);
        if b.dynamic_value(DT_RELRENT) != Some(8) || !size.is_multiple_of(8) {
            problems.push("the size of packed relocations is missing or wrong".into());
        }
    }
    // A word that is relocated twice gets the load address twice, and means something else.
    let twice = |image: &Image<'_>| -> usize { image.slots.windows(2).filter(|pair| overlaps(pair[0], pair[1])).count() };
    if twice(b) > twice(a) {
        problems.push("a word is relocated twice".into());
    }
    problems
}

fn overlaps(first: (u64, Slot), second: (u64, Slot)) -> bool {
    first.0 == second.0
}
