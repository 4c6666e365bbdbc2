//! The list of steps from an image to a program.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::cfg::build::Builder;
use crate::cfg::escape::misused_targets;
use crate::cfg::tables::exclusive::mark_exclusive;
use crate::cfg::tables::{Callees, ClusterJumps, Dispatch, RawTable, TableContext, merge_tables};
use crate::cfg::thunks::Thunks;
use crate::discover::clusters::{Clusters, join_by_flow};
use crate::discover::jump_runs::run_around;
use crate::discover::names::{self, NamedBy, Names};
use crate::discover::no_return::find_no_return;
use crate::discover::reach::{Explored, Reach, Reached};
use crate::discover::registered::NamesInUnwind;
use crate::discover::replaced::without_replaced;
use crate::discover::restartable::{Sequence, find_sequences, signatures};
use crate::discover::run_on::{find_entered_padding, find_running_on};
use crate::discover::shared_entries::SharedEntries;
use crate::discover::stubs::Stubs;
use crate::discover::survey::{CodeName, How, Survey, Surveyor};
use crate::discover::units::{Bounds, Unit, UnitData, Units, find_units, is_in, joined, unit_at};
use crate::discover::unseen::{self, OpenJumps, Search, Unseen};
use crate::elf::image::{SymbolData, original_name};
use crate::elf::stubs::is_stub_section;
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::error::{Error, Result};
use crate::ir::{BlockFlags, PinReason, Program, RelinkMode};
use crate::lift::explore::Explorer;
use crate::symbolize::pins::PinContext;
use crate::symbolize::{Assembly, Cluster, slots};
use crate::x86::{BREAKPOINT, MAX_INSTRUCTION_LEN};

/// What the lifter may look at.
#[derive(Copy, Clone, Debug)]
pub struct LiftOptions {
    /// Use the relocations that `--emit-relocs` kept. Without them a file is lifted as if it had none.
    pub use_static_relocs: bool,
    /// What is made of code that neither unwind entries nor relocations speak for.
    pub undescribed: Undescribed,
}

/// What is made of code that neither unwind entries nor relocations speak for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Undescribed {
    /// Functions are looked for, and what nothing reaches is read as code if it resembles code: it stays, but what it calls may move.
    #[default]
    Sought,
    /// Functions are looked for; what nothing reaches may be anything, and what it may name stays.
    Doubted,
    /// All of it stays.
    Stays,
}

impl Default for LiftOptions {
    fn default() -> Self {
        Self { use_static_relocs: true, undescribed: Undescribed::default() }
    }
}

mod explore;

const LARGE_MODEL: &str = "the medium or large code model: addresses are made of numbers that nothing marks";

/// Lifts a program, using all that the file says.
pub fn lift(image: &Image<'_>, unwind: Unwind) -> Result<Program> {
    lift_with(image, unwind, LiftOptions::default())
}

/// Lifts a program.
pub fn lift_with(image: &Image<'_>, unwind: Unwind, options: LiftOptions) -> Result<Program> {
    refuse_unsupported(image)?;
    let use_static_relocs = options.use_static_relocs && covers_text(image);
    let mode = relink_mode(image, use_static_relocs);

    // Discover: which bytes are code, and what they name.
    let mut stubs = Stubs::find(image);
    let trusts_left_over = options.undescribed == Undescribed::Sought;
    let explorer = Explorer { image, unwind: &unwind, stubs: &stubs, use_static_relocs, mode, trusts_left_over };
    let (told_apart, mut units, mut surveys) = find_described(explorer);
    let mut unwind = told_apart.unwrap_or(unwind);
    if let Some(without) = without_replaced(image, &unwind, &units, &surveys) {
        unwind = without;
        let explorer = Explorer { image, unwind: &unwind, stubs: &stubs, use_static_relocs, mode, trusts_left_over };
        (units, surveys) = explorer.look_again(&[], &Reached::default(), units, surveys);
    }
    if surveys.iter().any(|survey| survey.is_large_model) {
        return Err(Error::Unsupported(LARGE_MODEL.into()));
    }
    let explorer = Explorer { image, unwind: &unwind, stubs: &stubs, use_static_relocs, mode, trusts_left_over };
    let (trusts_symbols, reads_numbers) = (use_static_relocs, mode == RelinkMode::Guard);
    let reach = Reach { image, units: &units, surveys: &surveys, stubs: &stubs, trusts_symbols, reads_numbers };
    let is_marked = image.kind.is_position_independent();
    // Where the linker's relocations mark addresses of a file at a fixed address, symbols say where functions are.
    let seeks = options.undescribed != Undescribed::Stays && (is_marked || reads_numbers);
    let mut explored = if seeks { reach.explore() } else { Explored::default() };
    (units, surveys) = explorer.follow_tables(&mut explored, units, surveys);
    let reached = explored.finish();
    if explored.has_regions() {
        (units, surveys) = explorer.look_again(&[], &reached, units, surveys);
    }
    let sequences = find_sequences(image);
    let claimed = claimed_padding(image, &unwind.replaced, (&units, &reached), (&surveys, &sequences), mode);
    if !claimed.is_empty() {
        (units, surveys) = explorer.look_again(&claimed, &reached, units, surveys);
    }
    let mut names = names::collect(image, &unwind, &units, &surveys);
    if use_static_relocs && !image.kind.is_position_independent() {
        names = names.extended(slots::static_code_slots(image, &units).map(|(_, target, _)| (target, NamedBy::SLOT)));
    }
    let running_on = find_running_on(image, &unwind, &units, &surveys, &names);
    units.note_running_on(&running_on);
    let into_next = running_on.iter().copied().chain(find_entered_padding(image, &units, &surveys, &names));
    into_next.for_each(|unit| surveys[unit.index()].run_on());
    stubs.add_witnesses(surveys.iter().filter_map(|s| s.last_call));
    let mut clusters = join_by_flow(&units, &surveys, &names);
    let no_return = find_no_return(image, &units, &surveys, &stubs, &clusters);
    stubs.add_no_return(no_return.into_iter());

    // Indirect jumps: tables are new names, and may join clusters.
    let thunks = Thunks::find(image, &units);
    let context = Discovered {
        image,
        unwind: &unwind,
        units: &units,
        surveys: &surveys,
        stubs: &stubs,
        thunks: &thunks,
        use_static_relocs,
        mode,
    };
    let mut jumps = context.resolve_jumps(&names, &mut clusters, |_| true);
    let mut tables = merge_tables(&mut jumps);
    mark_exclusive(image, &surveys, &mut tables);
    let names = names.extended(tables.iter().flat_map(|t| &*t.distinct).map(|&target| (target, NamedBy::TABLE)));

    let unseen = context.unseen(&jumps, &clusters, &mut tables);
    let words = unseen.words.iter().map(|&(_, word)| (word, NamedBy::WORD));
    let names = names.extended(unseen.anchors.iter().map(|&anchor| (anchor, NamedBy::UNSEEN)).chain(words));

    // Blocks, then pins: from here on no address is named that is not a leader.
    let names_in_unwind = NamesInUnwind::find(image, &units, &surveys);
    let mut parts = context.build(&names, &clusters, &jumps, (&tables, &names_in_unwind));
    let pin_context = PinContext {
        image,
        unwind: &unwind,
        units: &units,
        surveys: &surveys,
        names: &names,
        clusters: &clusters,
        arrays: &reached.arrays,
        words: &unseen.words,
        unaligned_words: &unseen.unaligned_words,
        sequences: &sequences,
        mode,
        use_static_relocs,
    };
    let words = if use_static_relocs { slots::relative_words(image, |word| is_in_table(&tables, word)) } else { Vec::new() };
    let mut pins = pin_context.compute(&jumps, &words);
    pin_context.pin_by_table_address(&tables, &mut pins);
    // Many calls count with entries of one run, which is looked for once.
    let mut last_of_run = None;
    for va in context.misused_addresses(&names, &clusters, &jumps) {
        let run = if last_of_run.is_some_and(|last| va <= last) { Vec::new() } else { run_around(image, va) };
        last_of_run = run.last().copied().max(last_of_run);
        for entry in run.into_iter().chain([va]) {
            pin_context.pin_at(entry, PinReason::AddressArithmetic, &mut pins);
        }
    }
    for part in parts.iter().filter(|p| p.draft.is_broken) {
        pins.pin(&clusters, part.members[0], PinReason::Undecodable);
    }
    pin_context.pin_unseen(&unseen, &jumps, &mut pins);
    let relays = pin_context.spread(&unseen.anchors, &mut pins);
    let known_by_fault = pin_context.entries_known_by_faults();
    for part in &mut parts {
        part.pin = pins.of(&clusters, part.members[0]);
    }

    // Ids in place of addresses. What was surveyed is not needed any more, and takes room.
    drop((surveys, jumps));
    let table_names = table_names(&tables);
    let assembly = Assembly {
        image,
        unwind: &unwind,
        units: &units,
        names: &names,
        tables: &tables,
        table_names: &table_names,
        names_in_unwind: &names_in_unwind,
        thunks: &thunks,
    };
    let mut program = assembly.assemble(parts);
    if mode == RelinkMode::Replace {
        program.slots = slots::collect(image, &units, &program, use_static_relocs);
    }
    for block in relays.iter().filter_map(|relay| program.block_at(relay.anchor)).collect::<Vec<_>>() {
        program.blocks[block].flags.insert(BlockFlags::RELAYED);
    }
    for block in known_by_fault.into_iter().filter_map(|va| program.block_at(va)).collect::<Vec<_>>() {
        program.blocks[block].flags.insert(BlockFlags::KNOWN_BY_FAULT);
    }
    mark_cold(image, &mut program);
    program.relays = relays;
    program.mode = Some(mode);
    program.registered_table = names_in_unwind.registered.map(|(table, _)| table);
    program.names_in_unwind = names_in_unwind.all;
    program.unwind = unwind;
    Ok(program)
}

/// Units by what the file says of its functions, and what they name; with unwind entries that stand for one function each, where those of the file don't.
fn find_described(first: Explorer<'_>) -> (Option<Unwind>, Units, Vec<Survey>) {
    let image = first.image;
    let mut units = find_units(image, first.unwind, &[], &Reached::default());
    let mut surveys = survey_all(first.surveyor(&units));
    let mut told_apart: Option<Unwind> = None;
    loop {
        let unwind = told_apart.as_ref().unwrap_or(first.unwind);
        let beginnings = SharedEntries { image, unwind, units: &units, surveys: &surveys }.beginnings();
        let cut = (!beginnings.is_empty()).then(|| unwind.clone().cut_at(&beginnings));
        // Where entries overlap, one of them may have a place that the other can't be cut at.
        let Some(cut) = cut.filter(|cut| cut.fdes.len() > unwind.fdes.len()) else { return (told_apart, units, surveys) };
        (units, surveys) = Explorer { unwind: &cut, ..first }.look_again(&[], &Reached::default(), units, surveys);
        told_apart = Some(cut);
    }
}

/// Surveys every unit.
fn survey_all(surveyor: Surveyor<'_>) -> Vec<Survey> {
    let surveys = surveyor.units.as_slice().par_iter().map(|unit| surveyor.survey(unit)).collect();
    with_doubts(surveyor, surveys)
}

/// Surveys the units anew that were not among those before, and those that name a place in one that differs: whether a place is
/// code is part of what a survey says. Those that others made opaque are looked at again, since what made them so may be gone.
fn survey_again(surveyor: Surveyor<'_>, before: &Units, surveys: Vec<Survey>) -> Vec<Survey> {
    let units = surveyor.units;
    let is_in_other = |unit: &&UnitData, others: &Units| unit_at(others, unit.start).is_none_or(|other| others[other] != **unit);
    let gone = before.values().filter(|unit| is_in_other(unit, units));
    let new = units.values().filter(|unit| is_in_other(unit, before));
    let differing = joined(gone.chain(new).map(|unit| (unit.start, unit.end)).collect());
    let mut known: Vec<Option<Survey>> = units.values().map(|_| None).collect();
    for ((_, unit), survey) in before.iter().zip(surveys) {
        let same = unit_at(units, unit.start).filter(|&same| units[same] == *unit && survey.lasts());
        if let Some(same) = same {
            known[same.index()] = Some(survey);
        }
    }
    let survey = |(known, unit): (Option<Survey>, &UnitData)| match known {
        Some(survey) if !survey.places().any(|place| is_in(&differing, place)) => survey,
        _ => surveyor.survey(unit),
    };
    let surveys = known.into_par_iter().zip(units.as_slice()).map(survey).collect();
    with_doubts(surveyor, surveys)
}

/// A unit that code reads as data is opaque, and so is a gap that is named in the middle of what was taken for an instruction.
fn with_doubts(surveyor: Surveyor<'_>, mut surveys: Vec<Survey>) -> Vec<Survey> {
    let units = surveyor.units;
    let is_doubted = |name: &CodeName| {
        let unit = unit_at(units, name.target)?;
        let data = &units[unit];
        let is_torn = || data.fde().is_none() && !surveys[unit.index()].is_start(name.target - data.start);
        (name.how == How::Memory || is_torn()).then_some(unit)
    };
    let mut doubted: Vec<Unit> = surveys.par_iter().flat_map_iter(|s| s.names.iter().filter_map(is_doubted)).collect();
    doubted.extend(units.keys().filter(|&unit| !resembles_code(surveyor, &surveys, unit)));
    doubted.sort();
    doubted.dedup();
    doubted.retain(|unit| !surveys[unit.index()].is_opaque());
    let opaque: Vec<Survey> = doubted.par_iter().map(|&unit| surveyor.survey_as_opaque(&units[unit])).collect();
    for (unit, survey) in doubted.into_iter().zip(opaque) {
        surveys[unit.index()] = survey;
    }
    surveys
}

/// Whether what nothing reaches is code all the same, of functions that nobody calls: then all of other code that it names is where functions begin, or a stub of the linker's.
fn resembles_code(surveyor: Surveyor<'_>, surveys: &[Survey], unit: Unit) -> bool {
    let (units, survey) = (surveyor.units, &surveys[unit.index()]);
    if units[unit].bounds != Bounds::LeftOver || survey.is_opaque() {
        return true;
    }
    let is_entry = |name: &CodeName| {
        unit_at(units, name.target).is_none_or(|target| {
            let is_start = surveys[target.index()].is_start(name.target - units[target].start);
            target == unit || name.target == units[target].start || units[target].bounds == Bounds::LeftOver && is_start
        })
    };
    // A weak function that nobody defines is at 0.
    let is_stub = |&callee: &Va| callee.0 == 0 || surveyor.image.is_executable(callee);
    survey.problem.is_none() && survey.names.iter().all(is_entry) && survey.stray_calls.iter().all(is_stub)
}

/// Addresses in sections of code that instructions or relocated words name and that were taken for padding: clang leaves nothing of a
/// function that can't be called, and pointers to it name what follows; and what stands before the first function for who looks for it there. So do signatures of restartable sequences. Ascending.
fn claimed_padding(
    image: &Image<'_>,
    replaced: &[(Va, Va)],
    (units, reached): (&Units, &Reached),
    (surveys, sequences): (&[Survey], &[Sequence]),
    mode: RelinkMode,
) -> Vec<Va> {
    let code: Vec<(Va, Va)> = image
        .sections
        .values()
        .filter(|s| s.is_alloc() && s.is_executable() && !is_stub_section(s.name))
        .map(|s| (s.sh_addr, s.end()))
        .collect();
    let is_unreached = |va: Va| is_in(&reached.regions, va) && !is_in(&reached.pieces, va);
    let is_behind = |unit: Unit, va: Va| {
        let survey = &surveys[unit.index()];
        units[unit].bounds == Bounds::Gap && !survey.is_opaque() && va >= units[unit].start + survey.body_len
    };
    let is_free = |va: Va| unit_at(units, va).is_none_or(|unit| is_behind(unit, va)) || is_unreached(va);
    let in_code = |va: &Va| code.iter().any(|(start, end)| start <= va && va < end) && is_free(*va);
    let named = |s: &Survey| -> Vec<Va> {
        let data = s.data_names.iter().map(|n| n.0);
        let code = s.names.iter().map(|n| n.target).chain(s.stray_calls.iter().copied());
        data.chain(code).filter(in_code).collect()
    };
    let dynamic = names::relocated_addresses(image).map(|(_, target)| target);
    let ends = units.as_slice().first().zip(units.as_slice().last()).map(|(first, last)| (first.start, last.end));
    let words: Vec<Va> = match (mode, ends) {
        (RelinkMode::Guard, Some((low, high))) => {
            unseen::words_between(image, low, high, |va| in_code(va) && !is_amid_padding(image, units, *va))
        }
        (RelinkMode::Replace, _) if !image.kind.is_position_independent() => {
            slots::static_words(image).map(|(_, target, _)| target).collect()
        }
        _ => Vec::new(),
    };
    let slots = dynamic.chain(words).filter(in_code);
    let mut claimed: Vec<Va> = surveys.par_iter().flat_map_iter(named).collect();
    claimed.extend(slots);
    let is_label = |symbol: &SymbolData<'_>| symbol.has_address() && [elf::STT_FUNC, elf::STT_NOTYPE].contains(&symbol.st_type());
    // Names of what is replaced are left over like itself.
    let symbols = image.symbols.values().filter(|symbol| !is_in(replaced, Va(symbol.st_value)));
    let labels = symbols.chain(&image.dynamic_symbols).filter(|symbol| is_label(symbol)).map(|symbol| Va(symbol.st_value));
    claimed.extend(labels.filter(in_code));
    claimed.extend(signatures(image, sequences, surveys).filter(in_code));
    claimed.extend(breakpoints_run_into(image, units, surveys).filter(in_code));
    claimed.sort();
    claimed.dedup();
    claimed
}

/// The breakpoints between functions into which one runs that ends with nothing: a compiler leaves it so where it thinks that execution never comes there, and a linker fills up with breakpoints. Such a function stays, with
/// what it runs into; it would run into another one elsewhere.
fn breakpoints_run_into(image: &Image<'_>, units: &Units, surveys: &[Survey]) -> impl Iterator<Item = Va> {
    let ending = units.iter().filter(|(unit, data)| data.fde().is_some() && surveys[unit.index()].falls_out);
    ending.map(|(_, data)| data.end).filter(|&end| image.read(end, 1) == Some(&[BREAKPOINT]))
}

/// Whether an address outside of units is inside one of the instructions that fill what is between two of them. Whatever has a name begins where the assembler had filled up to: a
/// number that leads elsewhere is a number.
fn is_amid_padding(image: &Image<'_>, units: &Units, va: Va) -> bool {
    let after = units.as_slice().partition_point(|unit| unit.start <= va);
    let Some(end) = after.checked_sub(1).map(|last| units.as_slice()[last].end).filter(|end| *end <= va) else { return false };
    let Some(bytes) = image.read(end, (va - end) as usize + MAX_INSTRUCTION_LEN) else { return false };
    let padding =
        Decoder::with_ip(64, bytes, end.0, DecoderOptions::NONE).into_iter().take_while(|i| i.mnemonic() == Mnemonic::Nop);
    let filled = padding.map(|nop| nop.next_ip()).find(|&next| next >= va.0);
    va > end && filled.is_some_and(|next| next > va.0)
}

/// `DT_ANDROID_REL`, `DT_ANDROID_RELA`, `DT_ANDROID_RELR` of bionic: glibc and musl ignore these tables.
const ANDROID_RELOCATIONS: [u32; 3] = [0x6000_000f, 0x6000_0011, 0x6fff_e000];

/// Refuses files of which it is known before any code is read that moving it would break them.
pub fn refuse_unsupported(image: &Image<'_>) -> Result<()> {
    let unsupported = |why: &str| Err(Error::Unsupported(why.into()));
    let has_section = |name: &str| image.section_named(name).is_some();
    if has_section(".gopclntab") || has_section(".note.go.buildid") || has_section(".go.buildinfo") {
        return unsupported("a Go program: its run time keeps its own tables of code addresses");
    }
    if has_dump(image) {
        return unsupported("Emacs: the dump that it starts from (.pdmp) holds addresses of this file's code");
    }
    if let Some(image) = image_of_runtime(image) {
        return unsupported(&format!("{image}: its run time finds the code by tables of its own"));
    }
    if ANDROID_RELOCATIONS.iter().any(|&tag| image.dynamic_value(tag).is_some()) {
        return unsupported("relocations packed in Android's form (--pack-dyn-relocs=android), which are not read");
    }
    if has_section(".ltext") || has_section(".lrodata") || has_section(".ldata") {
        return unsupported(LARGE_MODEL);
    }
    if !image.has_section_headers && image.section_named(".text").is_none() {
        let head = &image.bytes[..image.bytes.len().min(4096)];
        if memchr::memmem::find(head, b"UPX!").is_some() {
            return unsupported("packed with UPX; unpack it first");
        }
        return unsupported("neither section headers nor unwind tables, so that nothing tells code from data");
    }
    Ok(())
}

/// Marks what BOLT has left where it was, or put behind what ran: it moves what ran by its profile to a section of its own. (Of a file that was rewritten since, nothing is told: the old section has another name then.)
fn mark_cold(image: &Image<'_>, program: &mut Program) {
    let is_bolted = image.sections.values().any(|s| s.is_executable() && original_name(s.name) != s.name);
    let is_cold = |name: &str| original_name(name) != name || name.starts_with(".text.cold");
    let mut cold: Vec<(Va, Va)> =
        image.sections.values().filter(|s| is_bolted && s.is_alloc() && is_cold(s.name)).map(|s| (s.sh_addr, s.end())).collect();
    cold.sort_unstable();
    for data in program.blocks.values_mut().filter(|data| is_in(&cold, data.start)) {
        data.flags.insert(BlockFlags::COLD);
    }
}

/// What a file of code compiled ahead of time for a run time is, by the symbols that the run time asks for. The tables that these stand for count functions from each other or from a
/// place, without relocations.
fn image_of_runtime(image: &Image<'_>) -> Option<&'static str> {
    const IMAGES: [(&str, &str); 4] = [
        ("jl_sysimg_fvars_base", "a system image of Julia"),
        ("jl_fvar_base", "a system image of Julia"),
        ("mono_aot_file_info", "code compiled ahead of time by Mono"),
        ("_kDartVmSnapshotInstructions", "a snapshot of Dart"),
    ];
    let is_there = |name: &str| image.dynamic_symbols.iter().any(|symbol| symbol.is_defined() && symbol.name == name);
    IMAGES.iter().find(|(name, _)| is_there(name)).map(|(_, what)| *what)
}

/// Whether the program starts from Emacs' portable dump, by the first bytes of such a file, which the program compares. The dump has functions by their distance from
/// where the program is loaded, and nothing in the program says which. libmagic's table has these bytes too, with what it says of such a file behind them.
fn has_dump(image: &Image<'_>) -> bool {
    // Backwards, or this program would be one of them.
    const MAGIC_BACKWARDS: &[u8] = b"SCAMEUNGDEPMUD";
    const DESCRIPTION: &[u8] = b"pdumper image";
    const ENTRY_MAX: usize = 512;
    let magic: Vec<u8> = MAGIC_BACKWARDS.iter().rev().copied().collect();
    let finder = memchr::memmem::Finder::new(&magic);
    let constants =
        image.sections.iter().filter(|(_, s)| s.is_alloc() && s.has_bytes() && !s.is_executable() && !s.is_writable());
    let is_described = |behind: &[u8]| memchr::memmem::find(&behind[..behind.len().min(ENTRY_MAX)], DESCRIPTION).is_some();
    let mut names_dumps = constants.map(|(id, _)| image.section_bytes(id));
    names_dumps.any(|bytes| finder.find_iter(bytes).any(|at| !is_described(&bytes[at..])))
}

/// Whether the linker kept the relocations of the code itself.
fn covers_text(image: &Image<'_>) -> bool {
    image.section_named(".rela.text").is_some() && image.has_static_relocs()
}

fn relink_mode(image: &Image<'_>, use_static_relocs: bool) -> RelinkMode {
    match image.kind.is_position_independent() || use_static_relocs {
        true => RelinkMode::Replace,
        false => RelinkMode::Guard,
    }
}

/// What discovery found, for the steps after it.
#[derive(Copy, Clone)]
struct Discovered<'i> {
    image: &'i Image<'i>,
    unwind: &'i Unwind,
    units: &'i Units,
    surveys: &'i [Survey],
    stubs: &'i Stubs,
    thunks: &'i Thunks,
    use_static_relocs: bool,
    mode: RelinkMode,
}

impl Discovered<'_> {
    /// What lies behind the indirect jumps of each cluster that has any, by its first unit. After the first round, only clusters are asked
    /// again that were joined, that have a jump without an answer, or in whose tables another one was found to start. Rounds end because each but the last joins
    /// clusters or finds tables.
    fn resolve_jumps(
        &self,
        names: &Names,
        clusters: &mut Clusters,
        is_asked: impl Fn(&[Unit]) -> bool + Sync,
    ) -> Vec<(Unit, ClusterJumps)> {
        let mut known_tables: Vec<Va> = Vec::new();
        let callees = Callees::default();
        let mut answers: Vec<(Unit, ClusterJumps)> = Vec::new();
        let mut kept: Vec<Unit> = Vec::new();
        loop {
            let context = self.table_context(names, clusters, (&known_tables, &callees));
            let has_jumps = |members: &[Unit]| members.iter().any(|&u| self.has_jumps(u));
            let is_open =
                |members: &Vec<Unit>| has_jumps(members) && is_asked(members) && kept.binary_search(&members[0]).is_err();
            let mut asked: Vec<Vec<Unit>> = clusters.members().into_par_iter().filter(is_open).collect();
            // The largest first, for one alone may take as long as all others together.
            let size = |members: &Vec<Unit>| members.iter().map(|&unit| self.units[unit].len()).sum::<usize>();
            asked.sort_by_cached_key(|members| std::cmp::Reverse(size(members)));
            let again: Vec<(Unit, ClusterJumps)> =
                asked.par_iter().with_max_len(1).map(|members| (members[0], context.analyze(members))).collect();
            answers.retain(|a| kept.binary_search(&a.0).is_ok());
            answers.extend(again);
            answers.sort_by_key(|a| a.0);
            let mut joined: Vec<Unit> = Vec::new();
            for (unit, answer) in &answers {
                for &other in &answer.joins {
                    if clusters.join(*unit, other) {
                        joined.extend([*unit, other]);
                    }
                }
            }
            for (part, source) in self.led_in(names, clusters, &answers) {
                if clusters.join(part, source) {
                    joined.extend([part, source]);
                }
            }
            let mut found: Vec<Va> =
                answers.iter().flat_map(|a| a.1.seen.iter().copied()).chain(known_tables.iter().copied()).collect();
            found.sort();
            found.dedup();
            if joined.is_empty() && found == known_tables {
                return answers;
            }
            known_tables = found;
            let joined: Vec<Unit> = joined.into_iter().map(|unit| clusters.find(unit)).collect();
            let is_settled = |unit: Unit, answer: &ClusterJumps| {
                clusters.find(unit) == unit
                    && !joined.contains(&unit)
                    && !answer.has_unresolved()
                    && !answer.is_cut_by(&known_tables)
            };
            kept = answers.iter().filter(|(unit, answer)| is_settled(*unit, answer)).map(|a| a.0).collect();
        }
    }

    /// Units of clusters with jumps that depend on what was there before, each with one that jumps or branches to its start. Nothing else leads there, so that both may be parts of
    /// one function: compilers that order blocks by a profile, or leave that to the linker, give each its own unwind entry.
    fn led_in(&self, names: &Names, clusters: &Clusters, answers: &[(Unit, ClusterJumps)]) -> Vec<(Unit, Unit)> {
        let mut is_asking = vec![false; self.units.len()];
        for (unit, _) in answers.iter().filter(|(_, answer)| answer.has_unresolved() || answer.is_led_in) {
            is_asking[clusters.find(*unit).index()] = true;
        }
        if !is_asking.contains(&true) {
            return Vec::new();
        }
        // The linker's stubs are no parts of anything.
        let is_movable = |unit: Unit| self.image.is_movable_code_section(self.units[unit].section);
        let is_part = |unit: Unit| {
            let by = names.at(self.units[unit].start);
            is_asking[clusters.find(unit).index()]
                && is_movable(unit)
                && !by.intersects(NamedBy::ENTRY | NamedBy::FUNCTION_SYMBOL)
        };
        let arrivals = self.units.keys().filter(|&source| is_movable(source)).flat_map(|source| {
            let branches = self.surveys[source.index()].names.iter().filter(|n| matches!(n.how, How::Jump | How::Branch));
            let starts =
                branches.filter_map(|n| unit_at(self.units, n.target).filter(|&unit| self.units[unit].start == n.target));
            starts.map(move |target| (target, source))
        });
        arrivals.filter(|&(target, source)| target != source && is_part(target)).collect()
    }

    /// What may be named without anyone's knowing; nothing in *replace* mode.
    fn unseen(&self, jumps: &[(Unit, ClusterJumps)], clusters: &Clusters, tables: &mut [RawTable]) -> Unseen {
        if self.mode == RelinkMode::Replace {
            return Unseen::default();
        }
        let open = jumps.iter().flat_map(|(unit, answer)| answer.open.iter().map(|&open| (open, clusters.find(*unit))));
        let mut open_tables: Vec<(Va, Unit)> = open.collect();
        open_tables.sort();
        let mut open_clusters: Vec<Unit> =
            jumps.iter().filter(|(_, answer)| answer.has_other_jumps()).map(|(unit, _)| clusters.find(*unit)).collect();
        open_clusters.sort();
        let cluster_at = |va| unit_at(self.units, va).map(|unit| clusters.find(unit));
        let search = Search { image: self.image, units: self.units, surveys: self.surveys };
        search.claim_tables(tables, &OpenJumps { tables: open_tables, clusters: open_clusters, cluster_at: &cluster_at });
        search.run(tables)
    }

    /// Whether a unit has a jump, or a call, whose target may have to be computed.
    fn has_jumps(&self, unit: Unit) -> bool {
        let survey = &self.surveys[unit.index()];
        let has_thunks = || survey.names.iter().any(|name| self.thunks.register_of(name.target).is_some());
        survey.has_indirect_jumps || survey.has_relative_calls || !self.thunks.is_empty() && has_thunks()
    }

    fn table_context<'c>(
        &'c self,
        names: &'c Names,
        clusters: &'c Clusters,
        (known_tables, callees): (&'c [Va], &'c Callees),
    ) -> TableContext<'c> {
        TableContext {
            image: self.image,
            unwind: self.unwind,
            units: self.units,
            surveys: self.surveys,
            stubs: self.stubs,
            thunks: self.thunks,
            names,
            clusters,
            known_tables,
            callees,
            use_static_relocs: self.use_static_relocs,
        }
    }

    /// Code addresses that instructions count with or read from, ascending.
    fn misused_addresses(&self, names: &Names, clusters: &Clusters, jumps: &[(Unit, ClusterJumps)]) -> Vec<Va> {
        let callees = Callees::default();
        let context = self.table_context(names, clusters, (&[], &callees));
        let answer = |unit: Unit| jumps.binary_search_by_key(&unit, |j| j.0).ok().map(|i| &jumps[i].1);
        let members = clusters.members();
        let mut misused: Vec<Va> =
            members.par_iter().flat_map_iter(|members| misused_targets(&context, members, answer(members[0]))).collect();
        misused.sort_unstable();
        misused.dedup();
        misused
    }

    fn build(
        &self,
        names: &Names,
        clusters: &Clusters,
        jumps: &[(Unit, ClusterJumps)],
        (tables, names_in_unwind): (&[RawTable], &NamesInUnwind),
    ) -> Vec<Cluster> {
        let table_names = table_names(tables);
        let dispatches: Vec<(Va, Dispatch)> = {
            let mut all: Vec<_> = jumps.iter().flat_map(|j| j.1.dispatches.iter().copied()).collect();
            all.sort_by_key(|d| d.0);
            all
        };
        let builder = Builder {
            image: self.image,
            unwind: self.unwind,
            units: self.units,
            surveys: self.surveys,
            stubs: self.stubs,
            names,
            use_static_relocs: self.use_static_relocs,
            table_names: &table_names,
            names_in_unwind,
            dispatches: &dispatches,
            has_labels: false,
        };
        clusters
            .members()
            .into_par_iter()
            .map(|members| {
                let has_labels = members.iter().any(|&u| self.has_labels(names, u));
                let draft = Builder { has_labels, ..builder }.build(&members);
                Cluster { members, draft, pin: None }
            })
            .collect()
    }

    /// Whether the address of a place inside the unit is taken.
    fn has_labels(&self, names: &Names, unit: Unit) -> bool {
        let data = &self.units[unit];
        let is_label = NamedBy::ADDRESS | NamedBy::SLOT | NamedBy::UNSEEN;
        names.within(data.start + 1, data.end).iter().any(|n| n.1.intersects(is_label))
    }
}

/// `(instruction, table)`, ascending.
fn table_names(tables: &[RawTable]) -> Vec<(Va, Va)> {
    let mut names: Vec<(Va, Va)> = tables.iter().flat_map(|t| t.named_at.iter().map(|&at| (at, t.at))).collect();
    names.sort();
    names
}

fn is_in_table(tables: &[RawTable], word: Va) -> bool {
    let after = tables.partition_point(|t| t.at <= word);
    after > 0 && {
        let table = &tables[after - 1];
        word < table.end()
    }
}
