//! `relift inspect`: what was lifted, what is pinned and why, and the control flow of a function.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use lifter::Va;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{CodeTarget, Program, Terminator};
use serde_json::json;

use super::{Style, print, print_json};
use crate::args::{CfgForm, Inspect};
use crate::driver::{self, Lifted};
use crate::failure::{Failure, Result};
use crate::files;
use crate::report::{self, group, percent};
use crate::timing::Timing;

pub(crate) fn run(args: &Inspect, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let bytes = files::read(&args.input)?;
    let lifted = driver::lift(&args.input, &bytes, true, timing)?;
    timing.finish();
    match &args.func {
        Some(wanted) => {
            let func = find(&lifted, wanted).ok_or_else(|| {
                Failure::at(&args.input, format!("no function {wanted}"))
                    .hint("give a symbol, an address such as 0x4010, or an id such as fn12")
            })?;
            show_function(&lifted, func, args.cfg, style)?;
        }
        None => show_file(&lifted, args.pinned, style)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn find(lifted: &Lifted<'_>, wanted: &str) -> Option<Func> {
    let program = &lifted.program;
    if let Some(index) = wanted.strip_prefix("fn").and_then(|n| n.parse::<usize>().ok()) {
        return (index < program.funcs.len()).then(|| Func::new(index));
    }
    if let Some(va) = wanted.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
        return program.block_containing(Va(va)).map(|block| program.func_of(block));
    }
    program.funcs.keys().find(|&func| name(lifted, func).is_some_and(|(raw, shown)| raw == wanted || shown == wanted))
}

/// A function's symbol, and the same demangled.
fn name(lifted: &Lifted<'_>, func: Func) -> Option<(String, String)> {
    let raw = lifted.image.symbols.get(lifted.program.funcs[func].symbol?)?.name;
    Some((raw.to_owned(), format!("{:#}", rustc_demangle::demangle(raw))))
}

pub(super) fn label(lifted: &Lifted<'_>, func: Func) -> String {
    name(lifted, func).map_or_else(|| func.to_string(), |(_, shown)| format!("{func} {shown}"))
}

fn show_file(lifted: &Lifted<'_>, lists_pinned: bool, style: Style) -> Result<()> {
    let Lifted { image, program } = lifted;
    let (functions, code) = report::coverage(program, None);
    let mut text = String::new();
    if style.json {
        let pinned: Vec<_> = pinned(program)
            .map(|(func, reason)| json!({ "function": func.to_string(), "name": name(lifted, func).map(|n| n.1),
                "address": program.blocks[program.funcs[func].entry].start.0, "bytes": program.func_size(func), "reason": reason }))
            .collect();
        return print_json(&json!({
            "kind": format!("{:?}", image.kind), "mode": report::mode_name(program),
            "functions": functions, "text_bytes": code, "blocks": program.blocks.len(), "edges": program.edges.len(),
            "references": program.refs.len(), "slots": program.slots.len(), "tables": program.tables.len(),
            "unwind_entries": program.unwind.fdes.len(), "exception_tables": program.unwind.lsdas.len(), "pinned_functions": pinned,
        }));
    }
    let _ = writeln!(text, "{:?}, {} mode", image.kind, report::mode_name(program));
    let rows = [
        ("functions", functions.total),
        ("blocks", program.blocks.len()),
        ("edges", program.edges.len()),
        ("references in code", program.refs.len()),
        ("code addresses in data", program.slots.len()),
        ("jump tables", program.tables.len()),
        ("unwind entries", program.unwind.fdes.len()),
        ("exception tables", program.unwind.lsdas.len()),
    ];
    for (what, count) in rows {
        let _ = writeln!(text, "{:>12} {what}", group(count as u64));
    }
    let _ = writeln!(text, "{:>12} bytes of code, {} movable", group(code.total), percent(code.moved, code.total));
    for (reason, count) in &functions.pinned {
        let _ = writeln!(text, "{:>12} functions pinned: {reason} ({} bytes)", group(*count as u64), group(code.pinned[reason]));
    }
    if lists_pinned {
        for (func, reason) in pinned(program) {
            let start = program.blocks[program.funcs[func].entry].start;
            let _ = writeln!(text, "{start} {:>8} {reason:<22} {}", program.func_size(func), label(lifted, func));
        }
    }
    print(&text)
}

fn pinned(program: &Program) -> impl Iterator<Item = (Func, &'static str)> {
    program.funcs.iter().filter_map(|(func, data)| Some((func, data.pin?.name())))
}

fn show_function(lifted: &Lifted<'_>, func: Func, form: Option<CfgForm>, style: Style) -> Result<()> {
    let program = &lifted.program;
    let data = &program.funcs[func];
    let blocks: Vec<Block> = data.blocks.iter().collect();
    if style.json {
        let blocks: Vec<_> = blocks.iter().map(|&b| block_json(program, b)).collect();
        return print_json(&json!({ "function": func.to_string(), "name": name(lifted, func).map(|n| n.1),
            "pin": data.pin.map(|p| p.name()), "bytes": program.func_size(func), "blocks": blocks }));
    }
    let mut text = String::new();
    match form {
        Some(CfgForm::Dot) => text = dot(program, func, &blocks),
        Some(CfgForm::Text) | None => {
            let state = data.pin.map_or("movable".to_owned(), |p| format!("pinned: {}", p.name()));
            let _ = writeln!(text, "{} ({} bytes, {state})", label(lifted, func), program.func_size(func));
            for range in program.func_ranges(func) {
                let _ = writeln!(text, "  range {}..{} class {}", range.start, range.end, range.unwind_class);
            }
            for &block in &blocks {
                let _ = writeln!(text, "  {}", block_text(program, block));
            }
        }
    }
    print(&text)
}

fn target(target: CodeTarget) -> String {
    match target {
        CodeTarget::Block(block) => block.to_string(),
        CodeTarget::Fixed(va) => va.to_string(),
    }
}

fn terminator(terminator: &Terminator) -> String {
    match *terminator {
        Terminator::Fallthrough { next } => format!("-> {next}"),
        Terminator::Jump { target: to } => format!("jmp {}", target(to)),
        Terminator::Branch { condition, taken, next } => format!("jcc({:x}) {}, -> {next}", condition.0, target(taken)),
        Terminator::Loop { taken, next } => format!("loop {taken}, -> {next}"),
        Terminator::Stop(kind) => format!("{kind:?}"),
    }
}

fn block_text(program: &Program, block: Block) -> String {
    let data = &program.blocks[block];
    let flags: Vec<&str> = data.flags.iter_names().map(|(name, _)| name).collect();
    let flags = if flags.is_empty() { String::new() } else { format!("  [{}]", flags.join(" ")) };
    format!("{block} {} {} bytes, {} instructions: {}{flags}", data.start, data.len, data.num_insts, terminator(&data.terminator))
}

fn block_json(program: &Program, block: Block) -> serde_json::Value {
    let data = &program.blocks[block];
    let successors: Vec<_> = program
        .block_edges(block)
        .iter()
        .map(|e| json!({ "to": e.target.to_string(), "kind": format!("{:?}", e.kind) }))
        .collect();
    json!({ "block": block.to_string(), "address": data.start.0, "bytes": data.len, "instructions": data.num_insts,
        "terminator": terminator(&data.terminator), "successors": successors })
}

fn dot(program: &Program, func: Func, blocks: &[Block]) -> String {
    let mut text = format!("digraph {func} {{\n  node [shape=box fontname=monospace]\n");
    let mut edges = BTreeMap::new();
    for &block in blocks {
        let data = &program.blocks[block];
        text.push_str(&format!("  {block} [label=\"{block} {}\\l{}\\l\"]\n", data.start, terminator(&data.terminator)));
        for edge in program.block_edges(block) {
            edges.insert((edge.source, edge.target), format!("{:?}", edge.kind));
        }
    }
    for ((source, target), kind) in edges {
        text.push_str(&format!("  {source} -> {target} [label=\"{kind}\"]\n"));
    }
    text.push_str("}\n");
    text
}
