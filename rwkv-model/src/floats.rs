use std::ops::{Deref, DerefMut};

/// Floats that begin at a cache line.
#[derive(Debug, Clone)]
pub(crate) struct Floats {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Floats {
    pub fn zeroed(len: usize) -> Floats {
        Floats { lines: vec![Line([0.0; 16]); len.div_ceil(16)], len }
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
