use crate::scalar;
pub(crate) unsafe fn avx2(x: &[f32], codes: &mut [i8]) -> f32 {
    scalar::quantize::quantize(x, codes)
}
pub(crate) unsafe fn avx512(x: &[f32], codes: &mut [i8]) -> f32 {
    scalar::quantize::quantize(x, codes)
}
