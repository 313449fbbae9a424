//! A tensor as torch sees it, a strided view of a storage, and its way into contiguous rows.
//!
//! Element `(i, j, ..)` is element `first + i * stride_i + j * stride_j + ..` of the storage.

use crate::error::{PackError, PackErrorKind};
use crate::input::InputFile;
use crate::torch::pickle::PickledTensor;

/// A view that lies in its storage.
#[derive(Debug)]
pub(crate) struct View {
    storage: usize,
    /// Bytes of one element.
    width: usize,
    /// Of the first element, in bytes from the beginning of the storage.
    first: u64,
    /// The least number of dimensions that visit the elements in row-major order.
    axes: Vec<Axis>,
    /// Bytes of all elements.
    len: u64,
    /// Bytes from the first element to the end of the last one in the storage.
    span: u64,
}

/// A dimension: how often to step, and how far, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    count: u64,
    step: u64,
}

/// A span of at most this many times the tensor's bytes is read in one piece.
const SPARSEST_SPAN: u64 = 4;
/// Bytes read at a time around single elements of sparser tensors.
const WINDOW: usize = 4096;

impl View {
    /// Checks that the tensor lies in its storage of `storage_len` bytes.
    pub fn new(tensor: &PickledTensor, storage: usize, storage_len: u64) -> Result<Self, PackError> {
        let PickledTensor { dtype, shape, strides, first, .. } = tensor;
        let width = dtype.byte_len() as u64;
        let outside = || {
            let line = format!(
                "shape {shape:?}, strides {strides:?} and offset {first} of {dtype} reach out of its storage of {storage_len} bytes"
            );
            PackError::malformed(line)
        };
        let len = dtype.tensor_bytes(shape).ok_or_else(outside)?;
        if usize::try_from(len).is_err() {
            let line = format!("its {len} bytes do not fit the address space");
            return Err(PackError::new(PackErrorKind::Unsupported, line));
        }
        if len == 0 {
            return Ok(Self { storage, width: width as usize, first: 0, axes: vec![], len, span: 0 });
        }
        let last = shape.iter().zip(strides).try_fold(*first, |last, (&count, &stride)| {
            // No dimension is zero here.
            stride.checked_mul(count as u64 - 1)?.checked_add(last)
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(width));
        let end = end.filter(|&end| end <= storage_len).ok_or_else(outside)?;
        if len > storage_len {
            let line = format!(
                "shape {shape:?} and strides {strides:?} repeat elements, {len} bytes out of {storage_len}: save a contiguous copy"
            );
            return Err(PackError::new(PackErrorKind::Unsupported, line));
        }
        let first = first * width;
        let axes = merged(shape, strides, width);
        Ok(Self { storage, width: width as usize, first, axes, len, span: end - first })
    }

    /// The index that was given for the storage.
    pub fn storage(&self) -> usize {
        self.storage
    }

    /// Whether the tensor is its whole storage, from the first byte to the last.
    pub fn is_whole(&self, storage_len: u64) -> bool {
        self.is_contiguous() && self.len == storage_len
    }

    fn is_contiguous(&self) -> bool {
        // Without gaps and repetitions; a permutation has more than one axis.
        self.span == self.len && self.axes.len() <= 1
    }

    /// Reads the elements in row-major order. The storage begins at `storage_offset` of the file.
    pub fn read(&self, input: &InputFile, storage_offset: u64, buf: &mut Vec<u8>) -> Result<(), PackError> {
        let start = storage_offset + self.first;
        if self.is_contiguous() {
            return input.read_extent(start, self.len, buf);
        }
        // Not longer than the storage, so that it lies in the file.
        buf.clear();
        buf.try_reserve_exact(self.len as usize).map_err(|error| {
            PackError::new(PackErrorKind::Io, format!("{} bytes do not fit into memory", self.len))
                .caused_by(error)
        })?;
        buf.resize(self.len as usize, 0);
        if self.span / SPARSEST_SPAN <= self.len {
            let mut span = Vec::new();
            input.read_extent(start, self.span, &mut span)?;
            self.gather(buf, |from, run| {
                run.copy_from_slice(&span[from as usize..from as usize + run.len()]);
                Ok(())
            })
        } else {
            let mut window = Window { bytes: [0; WINDOW], start: 0, len: 0 };
            self.gather(buf, |from, run| window.copy(input, start + from, start + self.span, run))
        }
    }

    /// Fills `buf` run by run. `copy` gets a run's distance from the first element in bytes, and its place.
    fn gather(
        &self,
        buf: &mut [u8],
        mut copy: impl FnMut(u64, &mut [u8]) -> Result<(), PackError>,
    ) -> Result<(), PackError> {
        // An innermost axis without gaps is copied as one run.
        let (outer, run) = match self.axes.split_last() {
            Some((inner, outer)) if inner.step == self.width as u64 => {
                (outer, inner.count as usize * self.width)
            }
            _ => (self.axes.as_slice(), self.width),
        };
        let mut counts = vec![0; outer.len()];
        let mut from = 0;
        for run in buf.chunks_exact_mut(run) {
            copy(from, run)?;
            for (count, axis) in counts.iter_mut().zip(outer).rev() {
                *count += 1;
                from += axis.step;
                if *count < axis.count {
                    break;
                }
                from -= axis.count * axis.step;
                *count = 0;
            }
        }
        Ok(())
    }
}

/// Drops dimensions of one element and joins those that step evenly into one another.
fn merged(shape: &[usize], strides: &[u64], width: u64) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for (&count, &stride) in shape.iter().zip(strides).filter(|(count, _)| **count != 1) {
        let axis = Axis { count: count as u64, step: stride * width };
        match axes.last_mut() {
            Some(outer) if outer.step == axis.count * axis.step => {
                *outer = Axis { count: outer.count * axis.count, step: axis.step };
            }
            _ => axes.push(axis),
        }
    }
    axes
}

/// The bytes around the element that was read last.
struct Window {
    bytes: [u8; WINDOW],
    start: u64,
    len: usize,
}

impl Window {
    /// Copies a run of the file, which ends before `end`.
    fn copy(&mut self, input: &InputFile, from: u64, end: u64, run: &mut [u8]) -> Result<(), PackError> {
        if run.len() >= WINDOW {
            return input.read_exact_at(run, from);
        }
        let inside = from.checked_sub(self.start).map(|distance| distance as usize);
        let inside = inside.filter(|&distance| distance + run.len() <= self.len);
        let distance = match inside {
            Some(distance) => distance,
            None => {
                self.len = (end - from).min(WINDOW as u64) as usize;
                self.start = from;
                input.read_exact_at(&mut self.bytes[..self.len], from)?;
                0
            }
        };
        run.copy_from_slice(&self.bytes[distance..distance + run.len()]);
        Ok(())
    }
}
