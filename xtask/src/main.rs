//! Commands for developers, run as `cargo xtask COMMAND`.
//!
//! They prepare what the tests of real programs need (`corpus`) and run those tests (`e2e`, and `stock` on what the machine has). None of them is needed to build or
//! to use relift, and none of them links any of its libraries: `e2e` drives the `relift` program exactly as a user would.

mod alias_random;
mod alias_trace;
mod bench;
mod corpus;
mod e2e;
mod growth;
mod mca;
mod random;
mod shell;
mod stock;
mod suites;
mod throughput;
mod truth;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "xtask", about = "Commands for developers of relift")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch and build the real programs that relift is proved on (a Debian machine with deb sources is needed)
    Corpus(corpus::CorpusArgs),
    /// Compare relift with LLVM BOLT on a suite of programs, with the same profile, and write a record
    Bench(bench::BenchArgs),
    /// Train, check and compare relift's output on these programs, and write a record
    E2e(e2e::E2eArgs),
    /// Measure how relift's time and memory grow with the size of the program
    Growth(growth::GrowthArgs),
    /// Relink the ELF files that this machine has, at random, and compare how they behave
    Stock(stock::StockArgs),
    /// Run real test-suites on relinked programs and libraries, and compare with the originals
    Suites(suites::SuitesArgs),
    /// Compare what is lifted with what the linker knew, on programs built for it
    Truth(truth::TruthArgs),
    /// Measure how fast perf.data is read, beside perf2bolt
    Throughput(throughput::ThroughputArgs),
    /// Check the alias analysis against every address that a program really touches
    AliasTrace(alias_trace::AliasTraceArgs),
    /// The same for random machine code
    AliasRandom(alias_random::AliasRandomArgs),
    /// Judge the schedules of a program's hottest blocks by llvm-mca
    Mca(mca::McaArgs),
    /// Relink random programs at random, and compare how they behave
    Random(random::RandomArgs),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Corpus(args) => corpus::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::E2e(args) => e2e::run(&args),
        Command::Growth(args) => growth::run(&args),
        Command::Stock(args) => stock::run(&args),
        Command::Suites(args) => suites::run(&args),
        Command::Truth(args) => truth::run(&args),
        Command::Throughput(args) => throughput::run(&args),
        Command::AliasRandom(args) => alias_random::run(&args),
        Command::AliasTrace(args) => alias_trace::run(&args),
        Command::Mca(args) => mca::run(&args),
        Command::Random(args) => random::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            shell::complain(&message);
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository: the folder above this package.
pub(crate) fn repository_root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
