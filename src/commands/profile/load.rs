//! Profiles of any kind as weights of a program.
//!
//! Relift's own are attributed by content; everything else becomes samples by address. What is of one kind is added up before flow is inferred, since the
//! sum says more than its parts; then the results are added up.

use std::path::{Path, PathBuf};

use profiles::samples::Collector;
use profiles::{
    Outline, ProfileFile, ProfileKind, Samples, StaleQuality, SymbolIndex, Watch, Weights, perf, preaggregated, yaml,
};

use crate::driver::{self, Lifted};
use crate::failure::{Failure, Result};
use crate::files;
use crate::progress::Progress;
use crate::report::{ProfileQuality, SampledQuality, percent};
use crate::timing::Timing;

/// A profile as it was named on the command line.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// How many times its counts count.
    pub(crate) weight: u64,
}

impl Source {
    /// `PATH` or `PATH:WEIGHT`; a file whose name ends like that is taken by its name.
    pub(crate) fn parse(named: &Path) -> Result<Self> {
        let whole = Source { path: named.to_owned(), weight: 1 };
        let Some((path, weight)) = named.to_str().and_then(|text| text.rsplit_once(':')) else { return Ok(whole) };
        if path.is_empty() || weight.is_empty() || !weight.bytes().all(|b| b.is_ascii_digit()) || named.exists() {
            return Ok(whole);
        }
        match weight.parse() {
            Ok(weight) if weight > 0 => Ok(Source { path: PathBuf::from(path), weight }),
            _ => Err(Failure::at(named, "the weight behind the colon is not a number from 1 on")),
        }
    }
}

/// The format of a file.
pub(crate) fn kind(path: &Path, bytes: &[u8]) -> Result<ProfileKind> {
    profiles::sniff(bytes).map_err(|e| {
        Failure::at(path, e).hint("give what a program made by `relift instrument` wrote, perf.data, or a profile of BOLT's")
    })
}

/// One of relift's own.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<ProfileFile> {
    ProfileFile::read(bytes)
        .map_err(|e| Failure::at(path, e).hint("give a file that a program made by `relift instrument` wrote"))
}

/// Reads, adds up and attributes profiles; `input` is the program's file. With `binary`, the profiles are of that build of the program and are carried over.
pub(crate) fn load(
    paths: &[PathBuf],
    binary: Option<&Path>,
    input: &Path,
    lifted: &Lifted<'_>,
    timing: &mut Timing,
) -> Result<(Weights, ProfileQuality)> {
    let Some(binary) = binary else { return load_fresh(paths, input, lifted, timing.progress()) };
    let bytes = files::read(binary)?;
    let old = driver::lift(binary, &bytes, false, timing)?;
    let (weights, mut quality) = load_fresh(paths, binary, &old, timing.progress())?;
    let before = Outline::build(&old.image, &old.program);
    if profiles::identity(&old.image) == profiles::identity(&lifted.image) {
        return Ok((profiles::carry_by_address(&before, &weights, &lifted.program).0, quality));
    }
    let after = Outline::build(&lifted.image, &lifted.program);
    let (weights, stale) = profiles::carry_over(&before, &weights, &after, &lifted.program);
    require_share(binary, "executed instructions", stale.counts_matched, stale.counts_total)?;
    require_carried(binary, &stale)?;
    quality.stale.push(stale.into());
    Ok((weights, quality))
}

fn load_fresh(paths: &[PathBuf], input: &Path, lifted: &Lifted<'_>, progress: &Progress) -> Result<(Weights, ProfileQuality)> {
    let mut loader = Loader {
        input,
        lifted,
        progress,
        symbols: None,
        own: Vec::new(),
        branches: Collector::default(),
        addresses: Collector::default(),
        has_samples: [false; 2],
    };
    for path in paths {
        loader.read(&Source::parse(path)?)?;
    }
    loader.finish(paths)
}

struct Loader<'a, 'i> {
    input: &'a Path,
    lifted: &'a Lifted<'i>,
    progress: &'a Progress,
    symbols: Option<SymbolIndex>,
    /// Of each plan, the sum.
    own: Vec<ProfileFile>,
    branches: Collector,
    addresses: Collector,
    /// Whether there are any with branches, and any with addresses only.
    has_samples: [bool; 2],
}

impl Loader<'_, '_> {
    fn read(&mut self, source: &Source) -> Result<()> {
        let path = source.path.as_path();
        let bytes = files::read(path)?;
        let at = |e: profiles::Error| Failure::at(path, e);
        let Lifted { image, program } = self.lifted;
        let symbols = self.symbols.get_or_insert_with(|| SymbolIndex::build(image, program));
        let reading = self.progress.reading(bytes.len() as u64);
        let watch = |bytes| reading.at(bytes);
        let samples = match kind(path, &bytes)? {
            ProfileKind::Relift => {
                let mut profile = parse(path, &bytes)?;
                profile.scale(source.weight);
                self.add_own(profile);
                return Ok(());
            }
            ProfileKind::PerfData => self.read_perf(path, &bytes, &watch)?,
            ProfileKind::Fdata => profiles::Fdata::read_watched(&bytes, &watch).map_err(at)?.resolve(symbols),
            ProfileKind::Yaml => yaml::resolve(&yaml::parse(&bytes).map_err(at)?, program, symbols).map_err(at)?,
            ProfileKind::Preaggregated => {
                preaggregated::read_watched(&bytes, build_id(self.lifted).as_deref(), &watch).map_err(at)?
            }
        };
        require_matches(path, &samples)?;
        let has_branches = samples.has_branches();
        let collector = if has_branches { &mut self.branches } else { &mut self.addresses };
        collector.merge(&samples, source.weight);
        self.has_samples[usize::from(!has_branches)] = true;
        Ok(())
    }

    fn read_perf(&self, path: &Path, bytes: &[u8], watch: Watch<'_>) -> Result<Samples> {
        let name = self.input.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let found = perf::read_watched(bytes, &self.lifted.image, &name, watch)
            .map_err(|e| Failure::at(path, e).hint("record while this very program runs"))?;
        if let Some(offset) = found.cut_at {
            eprintln!("relift: warning: {}: the file was cut short at byte {offset}; what is before it is used", path.display());
        }
        if found.lost > 0 {
            eprintln!("relift: warning: {}: perf lost {} records while it recorded", path.display(), found.lost);
        }
        Ok(found.samples)
    }

    fn add_own(&mut self, profile: ProfileFile) {
        let same = self.own.iter_mut().find(|own| own.descriptor == profile.descriptor);
        match same {
            Some(own) => {
                if let Ok(sum) =
                    ProfileFile::merge(&[std::mem::replace(own, ProfileFile::empty(profile.descriptor.clone())), profile])
                {
                    *own = sum;
                }
            }
            None => self.own.push(profile),
        }
    }

    fn finish(self, paths: &[PathBuf]) -> Result<(Weights, ProfileQuality)> {
        let Lifted { image, program } = self.lifted;
        let mut weights = Weights::none(program.blocks.len(), program.edges.len());
        let mut quality = ProfileQuality::default();
        let first = paths.first().map_or(Path::new("profile"), PathBuf::as_path);
        for profile in &self.own {
            let attribution = profiles::attribute(profile, image, program)
                .map_err(|e| Failure::at(first, e).hint("give a profile of this program"))?;
            let found = &attribution.quality;
            require_share(first, "counts", found.counts_matched, found.counts_total)?;
            quality.functions_matched += found.functions_matched as u64;
            quality.functions_total += found.functions_total as u64;
            quality.counts_matched = quality.counts_matched.saturating_add(found.counts_matched);
            quality.counts_total = quality.counts_total.saturating_add(found.counts_total);
            weights.add(&attribution.weights, 1);
            if let Some(stale) = &found.stale {
                require_carried(first, stale)?;
                quality.stale.push((*stale).into());
            }
        }
        let [has_branches, has_addresses] = self.has_samples;
        let collected = [("branches", has_branches, self.branches), ("addresses", has_addresses, self.addresses)];
        for (kind, _, collector) in collected.into_iter().filter(|(_, is_there, _)| *is_there) {
            let (sampled, found) = profiles::weigh(image, program, &collector.finish());
            weights.add(&sampled, 1);
            if kind == "addresses" {
                warn_of_few_samples(first, found.mapped, found.functions);
            }
            quality.sampled.push(SampledQuality {
                kind,
                total: found.total,
                located: found.located,
                mapped: found.mapped,
                functions: found.functions,
                imbalance_before: found.imbalance,
                changed: found.changed,
            });
        }
        Ok((weights, quality))
    }
}

/// What is carried over from too different a build is worse than nothing: with less than half of what ran, the result was measured to be
/// slower than the input.
fn require_carried(path: &Path, stale: &StaleQuality) -> Result<()> {
    const CARRIED_PERCENT_MIN: u64 = 50;
    const CARRIED_PERCENT_GOOD: u64 = 60;
    let is_below = |percent: u64| stale.counts_matched.saturating_mul(100) < stale.counts_total.saturating_mul(percent);
    let share = percent(stale.counts_matched, stale.counts_total);
    if is_below(CARRIED_PERCENT_MIN) {
        let what = format!("a profile of another build, of which only {share} of executed instructions were recognized");
        return Err(Failure::at(path, what).hint("record a profile of this build"));
    }
    if is_below(CARRIED_PERCENT_GOOD) {
        eprintln!(
            "relift: warning: {}: a profile of another build, of which only {share} of executed instructions were recognized; the result may be slower than the input: record a new one",
            path.display()
        );
    }
    Ok(())
}

/// Addresses without branches say where time goes and not how often, so it takes many of them. Measured: with 7 samples a function the code
/// took more branches than before, with 70 half of what is to be had was had.
fn warn_of_few_samples(path: &Path, samples: u64, functions: usize) {
    const SAMPLES_PER_FUNCTION_MIN: u64 = 30;
    if samples < SAMPLES_PER_FUNCTION_MIN.saturating_mul(functions as u64) {
        eprintln!(
            "relift: warning: {}: {samples} samples for {functions} functions are few, and without branches some {SAMPLES_PER_FUNCTION_MIN} for each are needed; the result may be slower than the input: record longer, or more often a second (perf record -F)",
            path.display()
        );
    }
}

fn build_id(lifted: &Lifted<'_>) -> Option<String> {
    let (offset, len) = lifted.image.build_id?;
    let start = usize::try_from(offset.0).ok()?;
    let bytes = lifted.image.bytes.get(start..start.checked_add(len)?)?;
    Some(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Refuses samples of another program. A machine-wide recording may hold little of this one, so only none at all is wrong.
fn require_matches(path: &Path, samples: &Samples) -> Result<()> {
    if samples.total != 0 && samples.is_empty() {
        return Err(Failure::at(path, "a profile of another program: none of it is about this one")
            .hint("give a profile of this program"));
    }
    Ok(())
}

/// Start-up code is the same in all programs; a profile that has only that in common is another program's.
fn require_share(path: &Path, what: &str, matched: u64, total: u64) -> Result<()> {
    const MATCHED_PERCENT_MIN: u64 = 10;
    if matched.saturating_mul(100) >= total.saturating_mul(MATCHED_PERCENT_MIN) {
        return Ok(());
    }
    let share = percent(matched, total);
    Err(Failure::at(path, format!("a profile of another program: {share} of its {what} match"))
        .hint("give a profile of this program"))
}
