//! `relift shrink`: smaller files.

use std::path::Path;
use std::process::ExitCode;

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::RefTarget;
use lifter::split;
use profiles::Weights;
use rewriter::edit::EditPlan;
use rewriter::fold::Folding;
use rewriter::fold::blocks::BlockFolding;
use rewriter::fold::ends;
use rewriter::layout::{self, LayoutOptions};
use rewriter::relink::Relinked;
use rewriter::shrink::{cuts, dead, pack, spread, tables};
use rewriter::transform::reached::reached;

use super::{Style, print, print_json, profile};
use crate::args::shrink::{Pack, Relr, Shrink, Technique};
use crate::driver::{self, Lifted};
use crate::failure::Result;
use crate::files::{self, Draft};

use crate::report::shrink::{Report, Saving};
use crate::timing::Timing;

pub(crate) fn run(args: &Shrink, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let mut report = shrink_or_less(args, timing)?;
    timing.finish();
    report.set_timing(timing);
    for warning in &report.warnings {
        eprintln!("relift: warning: {warning}");
    }
    if style.json {
        print_json(&report)?
    } else {
        print(&report.to_text())?
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the checker can't follow all techniques (it finds less than was known, or relift is wrong), those that change most are left out.
fn shrink_or_less(args: &Shrink, timing: &mut Timing) -> Result<Report> {
    let mut result = shrink(args, timing);
    if result.is_err() {
        // Without a file, or with one that is no program, nothing else would do.
        let input = &args.rewrite.input;
        driver::read(input, &files::read(input)?)?;
    }
    let mut args = args.clone();
    for less in [Less::Stripping, Less::Tails, Less::Folding, Less::Code] {
        let failure = match result {
            Err(failure) => failure,
            result => return result,
        };
        result = match less.leave_out(&mut args) {
            false => Err(failure),
            true => shrink(&args, timing).map(|mut report| {
                report.warnings.push(format!("{}: {failure}", less.consequence()));
                report
            }),
        };
    }
    result
}

/// What is left out where the checker can't follow everything.
#[derive(Copy, Clone, Debug)]
enum Less {
    Tails,
    Folding,
    Stripping,
    Code,
}

impl Less {
    /// Whether that is any less.
    fn leave_out(self, args: &mut Shrink) -> bool {
        match self {
            Less::Stripping => std::mem::take(&mut args.strip),
            Less::Tails => skip(args, &[Technique::Tails]),
            Less::Folding => skip(args, &[Technique::Fold]),
            Less::Code => skip(args, &OF_CODE),
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Less::Tails => "blocks that go on alike keep a copy each",
            Less::Folding => "functions that do the same keep a body each",
            Less::Stripping => "section headers stay",
            Less::Code => "code stays as it is",
        }
    }
}

fn skip(args: &mut Shrink, techniques: &[Technique]) -> bool {
    let is_less = techniques.iter().any(|&technique| args.is_on(technique));
    args.skip.extend_from_slice(techniques);
    is_less
}

/// Techniques that change code.
const OF_CODE: [Technique; 6] =
    [Technique::DeadCode, Technique::Fold, Technique::Tails, Technique::Order, Technique::Padding, Technique::UnwindEntries];

/// What came of the code.
struct Code {
    relinked: Relinked,
    savings: Vec<Saving>,
}

fn shrink(args: &Shrink, timing: &mut Timing) -> Result<Report> {
    let input = &args.rewrite.input;
    let bytes = files::read(input)?;
    let mut report = Report::new(&args.rewrite, bytes.len() as u64);
    // Fails for what is no program at all.
    driver::read(input, &bytes)?;
    let mut named = None;
    let code = match driver::lift_to_shrink(input, &bytes, args.rewrite.verify, timing) {
        Ok(mut lifted) => {
            report.set_coverage(&lifted.program);
            named = lifted.program.is_replaceable().then(|| named_data(&lifted));
            shrink_code(args, &mut lifted, timing, &mut report.warnings)?
        }
        Err(failure) => {
            report.warnings.push(format!("code stays as it is: {failure}"));
            None
        }
    };
    let (mut changed, mut free): (&[u8], Vec<(Va, Va)>) = match &code {
        Some(code) => (&code.relinked.bytes, code.relinked.free.clone()),
        None => (&bytes, Vec::new()),
    };
    let mut savings = code.as_ref().map(|code| code.savings.clone()).unwrap_or_default();
    let wants_cuts = args.is_on(Technique::Cuts) && args.is_on(Technique::Holes);
    let split = if wants_cuts { cuts::split_sections(changed, &free) } else { None };
    changed = split.as_deref().unwrap_or(changed);
    let repacked = match &named {
        Some(named) => timing.phase("pack the loader's tables", |_| tables::repack(changed, named, &free, table_options(args))),
        None => None,
    };
    if let Some(repacked) = &repacked {
        changed = &repacked.bytes;
        free.push(repacked.free);
        free.sort_unstable();
        savings.push(Saving::new("relr", "relocations", repacked.num_relocations, repacked.relr_bytes as i64));
        savings.push(Saving::new("hash", "bytes", repacked.hash_bytes, repacked.hash_bytes as i64));
    }
    let spread = match named.as_ref().filter(|_| args.is_on(Technique::Spread) && args.is_on(Technique::Holes)) {
        Some(named) => timing.phase("spread the tables", |_| spread::spread(changed, &free, named, options(args))),
        None => None,
    };
    if let Some((bytes, rest)) = &spread {
        changed = bytes;
        free.clone_from(rest);
    }
    if args.strip && args.is_on(Technique::Holes) {
        savings.push(unloaded(changed));
    }
    let packed = match args.is_on(Technique::Holes) {
        true => timing.phase("pack the file", |_| pack::pack(changed, &free, options(args))),
        false => Ok(None),
    };
    let packed = packed.map_err(|error| crate::failure::from_rewriter(input, &error))?;
    if packed.is_none() && args.is_on(Technique::Holes) {
        report
            .warnings
            .push("file offsets stay: something counts on them (bytes behind the ELF file, or unusual headers)".to_owned());
    }
    if let Some(packed) = &packed {
        (report.cuts, report.cut_bytes) = (packed.num_cuts as u64, packed.cut_bytes);
    }
    let output: &[u8] = packed.as_ref().map_or(changed, |packed| &packed.bytes);
    if output.len() >= bytes.len() {
        report.warnings.push("nothing makes this file smaller: the output is the input".to_owned());
        write(args, &bytes, &bytes, timing)?;
    } else {
        report.set_savings(&savings, output.len() as u64);
        if let Some(code) = code.as_ref().filter(|code| !code.relinked.dropped_sections.is_empty()) {
            let names = code.relinked.dropped_sections.join(", ");
            report.warnings.push(format!("dropped sections that describe the old code: {names}"));
        }
        report.dropped_sections = code.as_ref().map(|code| code.relinked.dropped_sections.clone()).unwrap_or_default();
        write(args, &bytes, output, timing)?;
    }
    Ok(report)
}

/// Addresses that code or a relocated word holds, ascending.
fn named_data(lifted: &Lifted<'_>) -> Vec<Va> {
    let fixed = lifted.program.refs.iter().filter_map(|reference| match reference.target {
        RefTarget::Fixed(va) => Some(va),
        _ => None,
    });
    let words = lifted.image.dynamic_relocs.iter().filter(|reloc| reloc.symbol == 0).map(|reloc| Va(reloc.addend as u64));
    let mut named: Vec<Va> = fixed.chain(words).collect();
    named.sort_unstable();
    named.dedup();
    named
}

fn table_options(args: &Shrink) -> tables::Options {
    let wanted = match args.relr {
        Relr::On => true,
        Relr::Off => false,
        Relr::Auto => system_reads_relr(),
    };
    let is_packed = args.is_on(Technique::Holes);
    tables::Options {
        relr: wanted && is_packed && args.is_on(Technique::Relr),
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

/// What `--strip` leaves out: sections that no loader reads, and the headers of all.
fn unloaded(bytes: &[u8]) -> Saving {
    let Ok(image) = Image::parse(bytes) else { return Saving::new("strip", "bytes", 0, 0) };
    let has_headers = image.has_section_headers;
    let sections = image.sections.values().filter(|section| has_headers && !section.is_alloc() && section.has_bytes());
    let count = if has_headers { image.sections.len() as u64 } else { 0 };
    let size = sections.map(|section| section.sh_size).sum::<u64>() + 64 * count;
    Saving::new("strip", "bytes", size, size as i64)
}

fn options(args: &Shrink) -> pack::Options {
    let sharing = if args.pack == Pack::Tight { pack::Sharing::Tight } else { pack::Sharing::Safe };
    pack::Options { sharing, strip: args.strip, cuts: args.is_on(Technique::Cuts) }
}

fn write(args: &Shrink, before: &[u8], after: &[u8], timing: &mut Timing) -> Result<()> {
    let output = &args.rewrite.output;
    let draft = timing.phase("write", |_| Draft::write(output, after, &args.rewrite.input))?;
    if !args.rewrite.no_check {
        driver::check(output, before, after, timing)?;
    }
    draft.put_in_place()
}

/// Relinks with less code; `None` where nothing of it can move.
fn shrink_code(args: &Shrink, lifted: &mut Lifted<'_>, timing: &mut Timing, warnings: &mut Vec<String>) -> Result<Option<Code>> {
    let Lifted { image, program } = &*lifted;
    let wants_code = OF_CODE.into_iter().any(|technique| args.is_on(technique));
    if !wants_code {
        return Ok(None);
    }
    if !program.is_replaceable() {
        warnings.push("code stays as it is: in a file at a fixed address any number may be a pointer".to_owned());
        return Ok(None);
    }
    if program.funcs.values().all(|func| !func.is_movable()) {
        warnings.push("code stays as it is: no function can be moved".to_owned());
        return Ok(None);
    }
    let input = &args.rewrite.input;
    let none = Weights::none(program.blocks.len(), program.edges.len());
    let weights = match args.profile.as_slice() {
        [] => none,
        paths => timing.phase("attribute the profile", |timing| profile::load(paths, None, input, lifted, timing))?.0,
    };
    let dropped = match args.is_on(Technique::DeadCode) {
        true => timing.phase("find dead code", |_| dead::find(image, program)),
        false => Vec::new(),
    };
    // What nothing leads to the checker can only match by content: it keeps its body.
    let is_reached = timing.phase("find dead code", |_| reached(image, program));
    let is_open = |func: Func| is_reached[program.funcs[func].entry] && dropped.binary_search(&func).is_err();
    let folded = match args.is_on(Technique::Fold) {
        true => driver::fold(lifted, timing).among(is_open),
        false => Folding::default(),
    };
    let (weights, is_reached) = match args.is_on(Technique::Tails) {
        true => timing.phase("cut blocks", |_| cut_blocks(lifted, &folded, weights, is_reached)),
        false => (weights, is_reached),
    };
    if args.rewrite.verify {
        driver::verify(input, lifted, "cutting blocks", timing)?;
    }
    let Lifted { image, program } = &*lifted;
    let mut plan = timing.phase("lay out", |_| match (weights.has_counts(), args.is_on(Technique::Padding)) {
        (true, _) => layout::compute(program, &weights, &EditPlan::default(), &layout_options()),
        (false, true) => layout::packed(program),
        (false, false) => layout::original(program),
    });
    let weights = folded.weights(program, weights);
    let mut gone = Gone {
        num_dead: dropped.len() as u64,
        dead_bytes: dropped.iter().map(|&func| program.func_size(func)).sum(),
        num_folded: folded.pairs().len() as u64,
        folded_bytes: folded.bytes(program),
        ..Gone::default()
    };
    plan.drop_functions(dropped);
    plan.fold(folded);
    if args.is_on(Technique::Tails) {
        timing.phase("find equal tails", |_| BlockFolding::apply(image, program, &mut plan, &weights, &is_reached));
        (gone.num_tails, gone.tail_bytes) = (plan.folded_blocks.pairs().len() as u64, plan.folded_blocks.saved());
    }
    // With a profile, what runs is laid out for speed.
    if args.is_on(Technique::Order) && !weights.has_counts() {
        gone.order_bytes = timing.phase("order blocks", |_| layout::compact(program, &mut plan));
    }
    if args.is_on(Technique::UnwindEntries) {
        plan.share_unwind_entries();
    }
    plan.fills_from_end = args.is_on(Technique::Cuts) && args.is_on(Technique::Holes) && !weights.has_counts();
    let mut rewritten = driver::rewrite(input, lifted, &weights, &plan, &EditPlan::default(), timing);
    if plan.fills_from_end && !rewritten.as_ref().is_ok_and(|relinked| relinked.overflow_bytes == 0) {
        plan.fills_from_end = false;
        rewritten = driver::rewrite(input, lifted, &weights, &plan, &EditPlan::default(), timing);
    }
    let relinked = match rewritten {
        Ok(relinked) => relinked,
        Err(failure) => {
            warnings.push(format!("code stays as it is: {failure}"));
            return Ok(None);
        }
    };
    if relinked.overflow_bytes > 0 {
        warnings.push("code stays as it is: it would need a segment more".to_owned());
        return Ok(None);
    }
    let savings = savings(image, &relinked, &gone);
    Ok(Some(Code { relinked, savings }))
}

/// Makes blocks of ends that may be worth sharing; what was known of blocks is known of their parts.
fn cut_blocks(
    lifted: &mut Lifted<'_>,
    folded: &Folding,
    weights: Weights,
    is_reached: SecondaryMap<Block, bool>,
) -> (Weights, SecondaryMap<Block, bool>) {
    let Lifted { image, program } = lifted;
    let cuts = ends::cuts(image, program, folded, &weights, &is_reached);
    let split = split::split(program, &cuts);
    let mut parts = SecondaryMap::new(split.origins.len(), false);
    program.blocks.keys().zip(&split.origins).for_each(|(part, origin)| parts[part] = is_reached[*origin]);
    (weights.of_parts(&split), parts)
}

/// Hot code for speed, but without copies.
fn layout_options() -> LayoutOptions {
    LayoutOptions { split: false, duplicate_tails: false, unroll_loops: false, ..LayoutOptions::default() }
}

/// Functions that have no body any more, and blocks.
#[derive(Default)]
struct Gone {
    num_dead: u64,
    dead_bytes: u64,
    num_folded: u64,
    folded_bytes: u64,
    num_tails: u64,
    tail_bytes: u64,
    /// What shorter branches leave.
    order_bytes: u64,
}

fn savings(image: &Image<'_>, relinked: &Relinked, gone: &Gone) -> Vec<Saving> {
    let code = image.sections.iter().filter(|(id, _)| image.is_movable_code_section(*id)).map(|(_, section)| section);
    let free_in = |start: Va, end: Va| {
        let inside = relinked.free.iter().map(|&(from, to)| to.min(end).0.saturating_sub(from.max(start).0));
        inside.sum::<u64>()
    };
    let free_text: u64 = code.map(|section| free_in(section.sh_addr, section.end())).sum();
    let bodies = gone.dead_bytes + gone.folded_bytes + gone.tail_bytes + gone.order_bytes;
    let (before, after) = relinked.unwind_bytes;
    let is_stale = |name: &&str| relinked.dropped_sections.iter().any(|dropped| dropped == name);
    let stale = image.sections.values().filter(|section| is_stale(&section.name)).map(|section| section.sh_size + 64);
    vec![
        Saving::new("stale-sections", "sections", relinked.dropped_sections.len() as u64, stale.sum::<u64>() as i64),
        Saving::new("dead-code", "functions", gone.num_dead, gone.dead_bytes as i64),
        Saving::new("fold", "functions", gone.num_folded, gone.folded_bytes as i64),
        Saving::new("tails", "blocks", gone.num_tails, gone.tail_bytes as i64),
        Saving::new("order", "bytes", gone.order_bytes, gone.order_bytes as i64),
        Saving::new("padding", "bytes", free_text.saturating_sub(bodies), free_text as i64 - bodies as i64),
        Saving::new("unwind-entries", "bytes", before.saturating_sub(after), before as i64 - after as i64),
    ]
}
