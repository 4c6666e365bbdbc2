//! Stubs that linkers make for imported functions: where each begins, and the slot that it jumps through.
//!
//! **Method.** The sections are decoded from their starts. A stub is what leads to an indirect jump through a slot without an end: it begins behind the jump before it and
//! behind padding, wherever that is. Section headers don't tell how long stubs are: old linkers leave the size of entries at 0 where they have 8 bytes, and a stub that is
//! taken for its neighbor gets the neighbor's name.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic};

use super::Image;
use crate::address::Va;

/// Sections of stubs: they hold no reference to code that moves, and nothing but calls and jumps names them.
pub(crate) fn is_stub_section(name: &str) -> bool {
    [".plt", ".plt.got", ".plt.sec", ".plt.bnd", ".iplt"].contains(&name)
}

/// All stubs with their slots, section by section.
pub fn stubs(image: &Image<'_>) -> Vec<(Va, Va)> {
    let mut found = Vec::new();
    for (id, section) in image.sections.iter().filter(|(_, s)| is_stub_section(s.name) && s.has_bytes()) {
        let mut decoder = Decoder::with_ip(64, image.section_bytes(id), section.sh_addr.0, DecoderOptions::NONE);
        let mut start = None;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            let begins_here = *start.get_or_insert(Va(instruction.ip()));
            if instruction.code() == Code::Jmp_rm64 && instruction.is_ip_rel_memory_operand() {
                found.push((begins_here, Va(instruction.ip_rel_memory_address())));
            }
            let is_padding = [Mnemonic::Nop, Mnemonic::Int3].contains(&instruction.mnemonic());
            if is_padding || instruction.is_invalid() || instruction.flow_control() != FlowControl::Next {
                start = None;
            }
        }
    }
    found
}
