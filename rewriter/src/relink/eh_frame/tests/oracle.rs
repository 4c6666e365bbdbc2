//! What gimli says of an `.eh_frame`: the rows of every entry, expressions as bytes.

use gimli::{BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, LittleEndian, RegisterRule, UnwindContext, UnwindSection};
use lifter::Va;

use crate::relink::eh_frame::UnwindBytes;

/// A row in a form that can be compared across sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    cfa: String,
    registers: Vec<(u16, String)>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) start: Va,
    pub(super) end: Va,
    pub(super) personality: Option<(bool, u64)>,
    pub(super) is_signal_frame: bool,
    offset: usize,
    /// From each address on, equal neighbors made one.
    rows: Vec<(Va, Row)>,
}

/// Entries are equal wherever in the section they lie.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        let all = |e: &Self| (e.start, e.end, e.personality, e.is_signal_frame);
        all(self) == all(other) && self.rows == other.rows
    }
}

impl Entry {
    /// The row at an address; the last one at the end.
    pub(super) fn row_at(&self, va: Va) -> &Row {
        let after = self.rows.partition_point(|(at, _)| *at <= va);
        &self.rows[after - 1].1
    }
}

/// All entries, ascending.
pub(super) fn entries(section: &[u8], at: Va) -> Vec<Entry> {
    let frame = EhFrame::new(section, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(at.0);
    let mut context = UnwindContext::new();
    let mut found = Vec::new();
    let mut entries = frame.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| section.cie_from_offset(bases, offset)).unwrap();
        let expression = |e: gimli::UnwindExpression<usize>| format!("{:?}", &section[e.offset..e.offset + e.length]);
        let mut rows: Vec<(Va, Row)> = Vec::new();
        let mut table = fde.rows(&frame, &bases, &mut context).unwrap();
        while let Some(row) = table.next_row().unwrap() {
            let cfa = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => format!("r{}{offset:+}", register.0),
                CfaRule::Expression(e) => expression(*e),
            };
            let mut registers: Vec<(u16, String)> = row
                .registers()
                .map(|(register, rule)| {
                    let rule = match rule {
                        RegisterRule::Expression(e) => format!("at {}", expression(*e)),
                        RegisterRule::ValExpression(e) => format!("is {}", expression(*e)),
                        other => format!("{other:?}"),
                    };
                    (register.0, rule)
                })
                .collect();
            registers.sort();
            let normal = Row { cfa, registers };
            if row.start_address() < row.end_address() && rows.last().is_none_or(|(_, last)| *last != normal) {
                rows.push((Va(row.start_address()), normal));
            }
        }
        found.push(Entry {
            start: Va(fde.initial_address()),
            end: Va(fde.initial_address() + fde.len()),
            personality: fde.personality().map(|p| match p {
                gimli::Pointer::Direct(at) => (false, at),
                gimli::Pointer::Indirect(at) => (true, at),
            }),
            is_signal_frame: fde.is_signal_trampoline(),
            offset: fde.offset(),
            rows,
        });
    }
    found.sort_by_key(|e| e.start);
    found
}

/// The search table names every entry, ascending, and nothing else.
pub(super) fn check_search_table(bytes: &UnwindBytes, hdr_at: Va, eh_frame_at: Va, entries: &[Entry]) {
    let bases = BaseAddresses::default().set_eh_frame_hdr(hdr_at.0);
    let header = EhFrameHdr::new(&bytes.eh_frame_hdr, LittleEndian).parse(&bases, 8).unwrap();
    assert_eq!(header.eh_frame_ptr().pointer(), eh_frame_at.0);
    let table = header.table().unwrap();
    let mut rows = table.iter(&bases);
    for entry in entries {
        let (start, fde) = rows.next().unwrap().unwrap();
        assert_eq!((start.pointer(), fde.pointer()), (entry.start.0, (eh_frame_at + entry.offset as u64).0));
    }
    assert!(rows.next().unwrap().is_none());
}
