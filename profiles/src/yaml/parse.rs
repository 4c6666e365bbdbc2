//! The subset of YAML that BOLT writes.

use super::{Call, FORMAT, Successor, Yaml, YamlBlock, YamlFunction};
use crate::error::Result;
use crate::text::{Line, Lines};

/// Where in the document a line belongs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Part {
    Header,
    Functions,
    /// A part of the document that is not needed, such as pseudo probes.
    Other,
}

/// Reads a file.
pub fn parse(bytes: &[u8]) -> Result<Yaml> {
    let mut yaml = Yaml::default();
    let mut part = Part::Other;
    for line in Lines::new(FORMAT, bytes) {
        let text = std::str::from_utf8(line.text).map_err(|_| line.fail("not text"))?;
        let indent = text.len() - text.trim_start_matches(' ').len();
        let body = text.trim();
        if matches!(body, "---" | "..." | "") || body.starts_with('#') {
            continue;
        }
        let (is_item, body) = match body.strip_prefix("- ") {
            Some(rest) => (true, rest.trim_start()),
            None => (false, body),
        };
        let (key, value) = body.split_once(':').ok_or_else(|| line.fail("a key and a colon are expected"))?;
        let (key, value) = (key.trim(), value.trim());
        if indent == 0 {
            part = match key {
                "header" => Part::Header,
                "functions" => Part::Functions,
                _ => Part::Other,
            };
            continue;
        }
        match part {
            Part::Header => header(&mut yaml, &line, key, value)?,
            Part::Functions => function_line(&mut yaml, &line, (is_item, indent), key, value)?,
            Part::Other => {}
        }
    }
    Ok(yaml)
}

fn header(yaml: &mut Yaml, line: &Line<'_>, key: &str, value: &str) -> Result<()> {
    match key {
        "profile-version" => {
            yaml.version = number(line, value)?;
            if yaml.version != 1 {
                return Err(line.fail(format!("version {} of the format is not known", yaml.version)));
            }
        }
        "profile-flags" => yaml.flags = value.to_owned(),
        "profile-events" => yaml.events = unquote(value),
        "dfs-order" => yaml.is_depth_first = value == "true",
        _ => {}
    }
    Ok(())
}

fn function_line(yaml: &mut Yaml, line: &Line<'_>, (is_item, indent): (bool, usize), key: &str, value: &str) -> Result<()> {
    if is_item && key == "name" {
        yaml.functions.push(YamlFunction { name: unquote(value), ..YamlFunction::default() });
        return Ok(());
    }
    let function = yaml.functions.last_mut().ok_or_else(|| line.fail("a function begins with its name"))?;
    if is_item && key == "bid" {
        function.blocks.push(YamlBlock { bid: small(line, value)?, ..YamlBlock::default() });
        return Ok(());
    }
    // A function's own keys stand further left than those of its blocks.
    const BLOCK_INDENT: usize = 6;
    if indent < BLOCK_INDENT {
        match key {
            "fid" => function.fid = small(line, value)?,
            "hash" => function.hash = number(line, value)?,
            "exec" => function.exec = number(line, value)?,
            "nblocks" => function.num_blocks = small(line, value)?,
            _ => {}
        }
        return Ok(());
    }
    let Some(block) = function.blocks.last_mut() else { return Ok(()) };
    match key {
        "insns" => block.instructions = small(line, value)?,
        "hash" => block.hash = number(line, value)?,
        "exec" => block.exec = number(line, value)?,
        "events" => block.events = number(line, value)?,
        "succ" => block.successors = successors(line, value)?,
        "calls" => block.calls = calls(line, value)?,
        _ => {}
    }
    Ok(())
}

fn successors(line: &Line<'_>, value: &str) -> Result<Vec<Successor>> {
    let mut result = Vec::new();
    for entry in flow_mappings(line, value)? {
        let mut successor = Successor::default();
        for (key, value) in entry {
            match key {
                "bid" => successor.bid = small(line, value)?,
                "cnt" => successor.count = number(line, value)?,
                "mis" => successor.mispredicted = number(line, value)?,
                _ => {}
            }
        }
        result.push(successor);
    }
    Ok(result)
}

fn calls(line: &Line<'_>, value: &str) -> Result<Vec<Call>> {
    let mut result = Vec::new();
    for entry in flow_mappings(line, value)? {
        let mut call = Call::default();
        for (key, value) in entry {
            match key {
                "off" => call.offset = small(line, value)?,
                "fid" => call.fid = small(line, value)?,
                "cnt" => call.count = number(line, value)?,
                "mis" => call.mispredicted = number(line, value)?,
                _ => {}
            }
        }
        result.push(call);
    }
    Ok(result)
}

/// `[ { key: value, … }, … ]`, without nesting.
fn flow_mappings<'a>(line: &Line<'_>, value: &'a str) -> Result<Vec<Vec<(&'a str, &'a str)>>> {
    let inner =
        value.strip_prefix('[').and_then(|v| v.strip_suffix(']')).ok_or_else(|| line.fail("a list in [ ] is expected"))?;
    let mut result = Vec::new();
    let mut rest = inner.trim();
    while !rest.is_empty() {
        let (entry, behind) =
            rest.strip_prefix('{').and_then(|r| r.split_once('}')).ok_or_else(|| line.fail("an entry in { } is expected"))?;
        let pairs = entry.split(',').filter(|pair| !pair.trim().is_empty());
        let pairs = pairs.map(|pair| {
            let (key, value) = pair.split_once(':').ok_or_else(|| line.fail("a key and a colon are expected"))?;
            Ok((key.trim(), value.trim()))
        });
        result.push(pairs.collect::<Result<Vec<_>>>()?);
        rest = behind.trim_start().trim_start_matches(',').trim_start();
    }
    Ok(result)
}

fn number(line: &Line<'_>, value: &str) -> Result<u64> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => line.parse(digits.as_bytes(), "a number", 16),
        None => line.parse(value.as_bytes(), "a number", 10),
    }
}

fn small(line: &Line<'_>, value: &str) -> Result<u32> {
    u32::try_from(number(line, value)?).map_err(|_| line.fail("the number is too large"))
}

fn unquote(value: &str) -> String {
    match value.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')) {
        Some(inner) => inner.replace("''", "'"),
        None => value.trim_matches('"').to_owned(),
    }
}
