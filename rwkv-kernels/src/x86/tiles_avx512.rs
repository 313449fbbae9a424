use crate::activations::Activations;
use crate::scalar;
use crate::tiles::RowTiles;
pub(crate) unsafe fn matmul<const VNNI: bool>(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    scalar::tiles::matmul(w, x, y)
}
