//! `cargo xtask mca PROGRAM -p PROFILE`: what scheduling is worth by llvm-mca, a model of processors that is not ours.
//!
//! **Method.** relift names the blocks in which the program executes most instructions, and lists what it would schedule. Each block is disassembled by llvm-mc and run by llvm-mca, as it is and
//! with its edits: once by itself, and a hundred times over, as a loop would. Cycles are weighted by how often the block runs. Branches, calls and caches cost what llvm-mca takes them
//! to, which is the same before and after.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use crate::e2e;
use crate::shell::{self, Result};

#[derive(Debug, Args)]
pub(crate) struct McaArgs {
    program: PathBuf,
    /// The profile by which blocks are hot
    #[arg(short, long)]
    profile: PathBuf,
    /// How many blocks
    #[arg(long, value_name = "N", default_value_t = 50)]
    blocks: usize,
    /// Processors, as llvm-mca names them
    #[arg(long, value_delimiter = ',', default_value = "skylake,znver3")]
    cpus: Vec<String>,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    /// Options for relift besides, as in `--relift-option=--assume=no-races`
    #[arg(long = "relift-option", value_name = "OPTION")]
    relift_options: Vec<String>,
    /// Add rows to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// A block as the input has it, and as the output would.
struct Block {
    address: u64,
    executions: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

pub(crate) fn run(args: &McaArgs) -> Result {
    for tool in ["llvm-mc", "llvm-mca"] {
        if shell::find_program(tool).is_none() {
            return Err(format!("this needs {tool}: run `apt-get install llvm`"));
        }
    }
    let relift = args.relift.clone().map_or_else(e2e::build_relift, Ok)?;
    let mut blocks = hottest(args, &relift)?;
    let edits = schedule(args, &relift, &mut blocks)?;
    let changed = blocks.iter().filter(|block| block.before != block.after).count();
    let texts: Vec<[String; 2]> =
        blocks.iter().map(|b| Ok([disassembled(&b.before)?, disassembled(&b.after)?])).collect::<Result<_>>()?;
    let name = args.program.file_name().unwrap_or_default().to_string_lossy();
    let options = args.relift_options.join(" ");
    let mut rows = String::new();
    for cpu in &args.cpus {
        for iterations in [1u32, 100] {
            let cycles = cycles(cpu, iterations, &texts)?;
            let weighted = |side: usize| -> u128 {
                blocks.iter().zip(&cycles).map(|(block, cycles)| u128::from(block.executions) * u128::from(cycles[side])).sum()
            };
            let (before, after) = (weighted(0), weighted(1));
            let change = (after as f64 / before.max(1) as f64 - 1.0) * 100.0;
            let better = cycles.iter().filter(|cycles| cycles[1] < cycles[0]).count();
            let worse = cycles.iter().filter(|cycles| cycles[1] > cycles[0]).count();
            let _ = writeln!(
                rows,
                "| {name} | {options} | {edits} | {cpu} | {iterations} | {changed} of {} | {better} | {worse} | {change:+.2} % |",
                blocks.len()
            );
        }
    }
    let head = "| program | options | edits | processor | runs | blocks changed | better | worse | cycles |\n|---|---|--:|---|--:|--:|--:|--:|--:|\n";
    shell::say(&format!("{head}{rows}"));
    if let Some(record) = &args.record {
        let old = std::fs::read_to_string(record).unwrap_or_else(|_| head.to_owned());
        shell::write_file(record, format!("{old}{rows}").as_bytes())?;
    }
    Ok(())
}

fn hottest(args: &McaArgs, relift: &PathBuf) -> Result<Vec<Block>> {
    let mut command = Command::new(relift);
    command.arg("analyze").arg(&args.program).arg("-p").arg(&args.profile);
    let output = shell::run(command.args(["--json", "--hottest", &args.blocks.to_string()]))?;
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).map_err(|error| format!("relift printed no JSON: {error}"))?;
    let block = |value: &Value| {
        let bytes = bytes_of(value["bytes"].as_str()?)?;
        let (address, executions) = (value["address"].as_u64()?, value["executions"].as_u64()?);
        Some(Block { address, executions, before: bytes.clone(), after: bytes })
    };
    all.iter().map(block).collect::<Option<_>>().ok_or_else(|| "a block lacks a field".into())
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}

/// Puts what relift would schedule into the blocks; gives how many edits it makes in the whole program.
fn schedule(args: &McaArgs, relift: &PathBuf, blocks: &mut [Block]) -> Result<usize> {
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a scratch folder: {error}"))?;
    let mut command = Command::new(relift);
    command.args(["optimize", "--only", "schedule", "--verbose"]).args(&args.relift_options);
    command.arg(&args.program).arg("-p").arg(&args.profile).arg("-o").arg(folder.path().join("output"));
    let output = shell::run(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut count = 0;
    for line in said.lines().filter_map(|line| line.strip_prefix("relift: edit: schedule 0x")) {
        count += 1;
        let edit = line.split_once(' ').zip(line.split_once("become ")).and_then(|((address, _), (_, bytes))| {
            let bytes = bytes.split(',').next().unwrap_or_default().replace(' ', "");
            Some((u64::from_str_radix(address, 16).ok()?, bytes_of(&bytes)?))
        });
        let (address, bytes) = edit.ok_or_else(|| format!("this edit is not understood: {line}"))?;
        for block in blocks.iter_mut() {
            let Some(at) = address.checked_sub(block.address).map(|at| at as usize) else { continue };
            if let Some(place) = block.after.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(&bytes);
            }
        }
    }
    Ok(count)
}

/// What a tool prints for an input.
fn filtered(command: &mut Command, input: &str) -> Result<String> {
    let start = |error: std::io::Error| format!("cannot run {}: {error}", shell::describe(command));
    let describe = shell::describe(command);
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a scratch folder: {error}"))?;
    let path = folder.path().join("input");
    let mut file = std::fs::File::create(&path).map_err(start)?;
    file.write_all(input.as_bytes()).map_err(|error| format!("cannot write for {describe}: {error}"))?;
    let output = command.arg(&path).stdin(Stdio::null()).output().map_err(|error| format!("cannot run {describe}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{describe} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn disassembled(bytes: &[u8]) -> Result<String> {
    let hex = bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "0x{byte:02x} ");
        text
    });
    let text = filtered(Command::new("llvm-mc").args(["-triple=x86_64", "--disassemble"]), &hex)?;
    let is_instruction = |line: &&str| line.starts_with('\t') && !line.trim().starts_with('.');
    Ok(text.lines().filter(is_instruction).fold(String::new(), |text, line| text + line + "\n"))
}

/// By block, cycles before and after.
fn cycles(cpu: &str, iterations: u32, texts: &[[String; 2]]) -> Result<Vec<[u64; 2]>> {
    let mut input = String::new();
    for (number, text) in texts.iter().flatten().enumerate() {
        let _ = write!(input, "# LLVM-MCA-BEGIN b{number}\n{text}# LLVM-MCA-END\n");
    }
    let mut command = Command::new("llvm-mca");
    command.args(["-mtriple=x86_64", &format!("-mcpu={cpu}"), &format!("-iterations={iterations}")]);
    let text = filtered(command.args(["-resource-pressure=0", "-instruction-info=0"]), &input)?;
    let numbers = text.lines().filter_map(|line| line.strip_prefix("Total Cycles:")?.trim().parse().ok());
    let all: Vec<u64> = numbers.collect();
    if all.len() != 2 * texts.len() {
        return Err(format!("llvm-mca judged {} of {} pieces", all.len(), 2 * texts.len()));
    }
    Ok(all.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect())
}
