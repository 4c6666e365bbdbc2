//! A profile of a lifted program as `fdata`.

use lifter::ir::Program;
use lifter::{Image, Va};

use super::{Fdata, Place, PlaceKind};
use crate::records::{FlowKind, flow_records};
use crate::symbols::SymbolIndex;
use crate::weights::Weights;

/// Everything that has a count, by the names that BOLT gives the places.
pub fn export(image: &Image<'_>, program: &Program, weights: &Weights, symbols: &SymbolIndex) -> Fdata {
    let mut fdata = Fdata::default();
    let outside = fdata.outside();
    for record in flow_records(image, program, weights) {
        let mut place = |at: Va| match symbols.locate(at) {
            Some((name, offset)) => Place { kind: PlaceKind::Function, name: fdata.intern(name), offset },
            None => outside,
        };
        let to = place(program.blocks[record.target].start);
        let from = if record.kind == FlowKind::Entry { outside } else { place(record.from) };
        if from != outside || to != outside {
            fdata.add_branch(from, to, 0, record.count);
        }
    }
    fdata
}
