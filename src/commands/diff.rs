//! `relift diff`: two files beside each other, section by section.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use lifter::Image;
use serde_json::json;

use super::{Style, print, print_json};
use crate::args::Diff;
use crate::failure::{Result, from_lifter};
use crate::files;
use crate::report::group;

pub(crate) fn run(args: &Diff, style: Style) -> Result<ExitCode> {
    let (before, after) = (files::read(&args.input)?, files::read(&args.output)?);
    let before_image = Image::parse(&before).map_err(|e| from_lifter(&args.input, &e))?;
    let after_image = Image::parse(&after).map_err(|e| from_lifter(&args.output, &e))?;
    let rows = rows(&before_image, &after_image);
    if style.json {
        let rows: BTreeMap<_, _> = rows.iter().map(|(name, old, new)| (*name, json!({ "before": old, "after": new }))).collect();
        print_json(&json!({ "bytes": { "before": before.len(), "after": after.len() }, "sections": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    let _ = writeln!(text, "{:<24} {:>14} {:>14}", "section", "before", "after");
    for (name, old, new) in &rows {
        let show = |size: &Option<u64>| size.map_or("-".to_owned(), group);
        let _ = writeln!(text, "{name:<24} {:>14} {:>14}", show(old), show(new));
    }
    let _ = writeln!(text, "{:<24} {:>14} {:>14}", "file", group(before.len() as u64), group(after.len() as u64));
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Section sizes in the order of the first file, sections that only the second has behind them.
fn rows<'a>(before: &Image<'a>, after: &Image<'a>) -> Vec<(&'a str, Option<u64>, Option<u64>)> {
    let size_in = |image: &Image<'a>, name: &str| image.section_named(name).map(|id| image.sections[id].sh_size);
    let named = |image: &Image<'a>| image.sections.values().map(|s| s.name).filter(|n| !n.is_empty()).collect::<Vec<_>>();
    let old = named(before);
    let new = named(after).into_iter().filter(|name| !old.contains(name)).collect::<Vec<_>>();
    old.iter().chain(&new).map(|name| (*name, size_in(before, name), size_in(after, name))).collect()
}
