//! Products as tests describe them, put together with the functions of C, and what they are in f64.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call of C is as NVIDIA's headers declare it"
)]

use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};

use gpu_double::cublaslt::exports::{
    Handle, cublasLtCreate, cublasLtMatmul, cublasLtMatmulAlgoGetHeuristic,
};
use gpu_double::cublaslt::heuristic::{Algorithm, Choice};
use gpu_double::cublaslt::settings::*;
use gpu_double::cublaslt::types::Element;

use super::programs::{download, room, stream, synchronize, upload};

/// A product as a test describes it: numbers as C has them.
#[derive(Clone, Debug)]
pub struct Described {
    pub extents: [usize; 3],
    pub element: i32,
    pub result: i32,
    pub compute: i32,
    pub transpose: [bool; 2],
    pub rows_first: [bool; 4],
    /// Elements between the lines of each matrix.
    pub gap: usize,
    pub batch: usize,
    pub shared_b: bool,
    pub epilogue: u32,
    pub aux: Option<Vec<u8>>,
    pub scalars_on_device: bool,
    /// All elements of A and of B.
    pub values: Option<[f64; 2]>,
}

/// The results of a product.
#[derive(Clone, Debug)]
pub struct Results {
    pub result: Vec<f64>,
    pub vector: Vec<f64>,
    pub aux: Option<Vec<u8>>,
}

/// Its descriptors and operands.
pub struct Prepared {
    pub handle: *mut Handle,
    pub descriptor: *mut c_void,
    pub layouts: [*mut c_void; 4],
    /// A, B, C, D, the vector and the aux buffer.
    pub operands: [u64; 6],
    scalars: Box<[f32; 2]>,
    on_device: Option<u64>,
    /// A, B and C as they are on the device, in f64, and their places.
    matrices: [Vec<f64>; 4],
    bias: Vec<f64>,
}

/// The number that fills the gaps between lines.
const MARK: f64 = 77.0;

impl Described {
    pub fn new(m: usize, n: usize, k: usize, element: i32) -> Described {
        Described {
            extents: [m, n, k],
            element,
            result: element,
            compute: 68,
            transpose: [false; 2],
            rows_first: [false; 4],
            gap: 0,
            batch: 1,
            shared_b: false,
            epilogue: 1,
            aux: None,
            scalars_on_device: false,
            values: None,
        }
    }

    /// Rows and columns of A, B, C and D.
    fn shapes(&self) -> [(usize, usize); 4] {
        let [m, n, k] = self.extents;
        let turned = |shape: (usize, usize), turn| if turn { (shape.1, shape.0) } else { shape };
        [turned((m, k), self.transpose[0]), turned((k, n), self.transpose[1]), (m, n), (m, n)]
    }

    fn types(&self) -> [i32; 4] {
        [self.element, self.element, self.result, self.result]
    }

    fn ld(&self, matrix: usize) -> usize {
        let (rows, cols) = self.shapes()[matrix];
        self.gap + if self.rows_first[matrix] { cols } else { rows }
    }

    fn elements(&self, matrix: usize) -> usize {
        let (rows, cols) = self.shapes()[matrix];
        self.ld(matrix) * if self.rows_first[matrix] { rows } else { cols }
    }

    fn stride(&self, matrix: usize) -> usize {
        if matrix == 1 && self.shared_b { 0 } else { self.elements(matrix) }
    }

    fn place(&self, matrix: usize, batch: usize, row: usize, col: usize) -> usize {
        let (line, inner) = if self.rows_first[matrix] { (row, col) } else { (col, row) };
        batch * self.stride(matrix) + line * self.ld(matrix) + inner
    }

    /// Values of a matrix of all of the batch, with marks between lines.
    fn fill(&self, matrix: usize) -> Vec<f64> {
        let element = Element::of(self.types()[matrix]).expect("a type");
        let mut values = vec![MARK; self.elements(matrix) * self.batch];
        let (rows, cols) = self.shapes()[matrix];
        let mut seed = matrix as u64 + 1;
        for batch in 0..self.batch {
            for row in 0..rows {
                for col in 0..cols {
                    let value = match self.values {
                        Some(values) if matrix < 2 => values[matrix],
                        _ => random(&mut seed),
                    };
                    let place = self.place(matrix, batch, row, col);
                    values[place] = rounded(element, value);
                }
            }
        }
        values
    }

    fn vector_length(&self) -> usize {
        if self.epilogue == 512 { self.extents[1] } else { self.extents[0] }
    }

    fn has_bias(&self) -> bool {
        self.epilogue & 4 != 0
    }

    fn masks(&self) -> bool {
        self.epilogue & (2 | 8) != 0
    }

    fn aux_ld(&self) -> usize {
        self.extents[0].next_multiple_of(if self.masks() { 128 } else { 8 })
    }

    fn aux_bytes(&self) -> usize {
        let elements = self.aux_ld() * self.extents[1] * self.batch;
        if self.masks() { elements / 8 } else { elements * bytes_of(self.result) }
    }

    /// Descriptors, and operands on the device.
    pub fn prepare(&self, alpha: f32, beta: f32) -> Prepared {
        let mut matrices: [Vec<f64>; 4] = std::array::from_fn(|matrix| self.fill(matrix));
        matrices[3].fill(MARK);
        let types = self.types();
        let mut operands = [0; 6];
        for matrix in 0..4 {
            operands[matrix] = upload(&packed(types[matrix], &matrices[matrix]));
        }
        let length = self.vector_length() * self.batch;
        let mut seed = 9;
        let element = Element::of(self.result).expect("a type");
        let bias: Vec<f64> = (0..length).map(|_| rounded(element, random(&mut seed))).collect();
        operands[4] = upload(&packed(self.result, &bias));
        operands[5] = match &self.aux {
            Some(aux) => upload(aux),
            None => upload(&vec![0xaau8; 2 * self.aux_bytes()]),
        };
        let scalars = Box::new([alpha, beta]);
        let on_device = self.scalars_on_device.then(|| upload(&*scalars));
        let (descriptor, layouts) = self.describe(&operands);
        let mut handle = null_mut();
        assert_eq!(unsafe { cublasLtCreate(&mut handle) }, 0);
        Prepared { handle, descriptor, layouts, operands, scalars, on_device, matrices, bias }
    }

    fn describe(&self, operands: &[u64; 6]) -> (*mut c_void, [*mut c_void; 4]) {
        let mut descriptor = null_mut();
        assert_eq!(unsafe { cublasLtMatmulDescCreate(&mut descriptor, self.compute, 0) }, 0);
        set_matmul(descriptor, 2, &i32::from(self.scalars_on_device));
        set_matmul(descriptor, 3, &i32::from(self.transpose[0]));
        set_matmul(descriptor, 4, &i32::from(self.transpose[1]));
        set_matmul(descriptor, 7, &self.epilogue);
        set_matmul(descriptor, 8, &operands[4]);
        set_matmul(descriptor, 10, &(self.vector_length() as i64));
        set_matmul(descriptor, 11, &operands[5]);
        set_matmul(descriptor, 12, &(self.aux_ld() as i64));
        set_matmul(descriptor, 13, &((self.aux_ld() * self.extents[1]) as i64));
        let layouts = std::array::from_fn(|matrix| self.layout(matrix));
        (descriptor, layouts)
    }

    fn layout(&self, matrix: usize) -> *mut c_void {
        let (rows, cols) = self.shapes()[matrix];
        let (element, ld) = (self.types()[matrix], self.ld(matrix) as i64);
        let mut layout = null_mut();
        let created = unsafe {
            cublasLtMatrixLayoutCreate(&mut layout, element, rows as u64, cols as u64, ld)
        };
        assert_eq!(created, 0);
        set_layout(layout, 1, &i32::from(self.rows_first[matrix]));
        set_layout(layout, 5, &(self.batch as i32));
        set_layout(layout, 6, &(self.stride(matrix) as i64));
        layout
    }

    /// Computes the product and gives it back.
    pub fn run(&self, alpha: f32, beta: f32) -> Results {
        let prepared = self.prepare(alpha, beta);
        self.run_prepared(&prepared)
    }

    fn run_prepared(&self, prepared: &Prepared) -> Results {
        let stream = stream();
        let workspace = room(4096);
        let chosen = prepared.choose(4096).expect("an algorithm");
        assert_eq!(prepared.launch_by(&chosen.algorithm, workspace, 4096, stream), 0);
        assert_eq!(synchronize(stream), 0);
        let read = |address, count| unpacked(self.result, address, count);
        Results {
            result: read(prepared.operands[3], self.elements(3) * self.batch),
            vector: read(prepared.operands[4], self.vector_length() * self.batch),
            aux: (self.epilogue & 128 != 0)
                .then(|| download(prepared.operands[5], self.aux_bytes())),
        }
    }

    /// Computes the product and compares it; gives the aux buffer.
    pub fn check(&self, alpha: f32, beta: f32) -> Option<Vec<u8>> {
        let prepared = self.prepare(alpha, beta);
        let results = self.run_prepared(&prepared);
        let mut expected = prepared.matrices[3].clone();
        let mut vector = prepared.bias.clone();
        let mut aux = results.aux.clone();
        for batch in 0..self.batch {
            self.expect(
                &prepared,
                (alpha, beta),
                batch,
                &mut expected,
                &mut vector,
                aux.as_deref_mut(),
            );
        }
        let close = |name: &str, got: &[f64], expected: &[f64]| {
            let tolerance = match self.result {
                0 => 2e-6,
                2 => 1e-3,
                _ => 8e-3,
            };
            for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
                let error = (got - expected).abs() / (1.0 + expected.abs());
                let scale = (self.extents[2] as f64).sqrt();
                assert!(error <= tolerance * scale, "{name}[{place}]: {got} {expected} {self:?}");
            }
        };
        close("D", &results.result, &expected);
        close("vector", &results.vector, &vector);
        assert_eq!(aux, results.aux, "{self:?}");
        results.aux
    }

    /// Computes one product of the batch in f64, into D, the vector, and an aux buffer that is written.
    fn expect(
        &self,
        prepared: &Prepared,
        (alpha, beta): (f32, f32),
        batch: usize,
        result: &mut [f64],
        vector: &mut [f64],
        mut aux: Option<&mut [u8]>,
    ) {
        let [m, n, k] = self.extents;
        let at = |matrix: usize, row, col| {
            let (row, col) =
                if matrix < 2 && self.transpose[matrix] { (col, row) } else { (row, col) };
            prepared.matrices[matrix][self.place(matrix, batch, row, col)]
        };
        let length = self.vector_length();
        let vector = &mut vector[batch * length..][..length];
        let bias: Vec<f64> = vector.to_vec();
        if self.epilogue & (16 | 256 | 512) != 0 {
            vector.fill(0.0);
        }
        for row in 0..m {
            for col in 0..n {
                let sum: f64 = (0..k).map(|i| at(0, row, i) * at(1, i, col)).sum();
                let mut value = f64::from(alpha) * sum;
                value += if beta == 0.0 { 0.0 } else { f64::from(beta) * at(2, row, col) };
                if self.has_bias() {
                    value += bias[row];
                }
                let place = (batch * n + col) * self.aux_ld() + row;
                let value = self.apply(value, place, aux.as_deref_mut());
                if self.epilogue & 16 != 0 {
                    vector[row] += value;
                }
                result[self.place(3, batch, row, col)] = value;
            }
        }
        match self.epilogue {
            256 => (0..m * k).for_each(|i| vector[i % m] += at(0, i % m, i / m)),
            512 => (0..n * k).for_each(|i| vector[i % n] += at(1, i / n, i % n)),
            _ => {}
        }
    }

    /// The function of the epilogue at one element; what it keeps is compared where it is kept.
    fn apply(&self, value: f64, place: usize, aux: Option<&mut [u8]>) -> f64 {
        let aux = aux.map(|aux| &*aux);
        let bit = || aux.expect("a mask")[place / 8] >> (place % 8) & 1 == 1;
        let kept = || {
            let size = bytes_of(self.result);
            let element = Element::of(self.result).expect("a type");
            f64::from(element.read(&aux.expect("kept values")[place * size..][..size]))
        };
        match self.epilogue & !(4 | 16 | 256 | 512) {
            2 => value.max(0.0),
            32 => gelu(value),
            130 => {
                assert!(value.abs() < 1e-4 || bit() == (value > 0.0), "{place}: {value}");
                value.max(0.0)
            }
            160 => {
                assert!((kept() - value).abs() < 1e-4, "{place}: {value} {}", kept());
                gelu(value)
            }
            136 => value * f64::from(u8::from(bit())),
            192 => {
                let step = 1e-4;
                let x = kept();
                value * (gelu(x + step) - gelu(x - step)) / (2.0 * step)
            }
            _ => value,
        }
    }
}

impl Prepared {
    /// Algorithms for a workspace of so many bytes: the first, or the status.
    pub fn choose(&self, workspace: u64) -> Result<Choice, i32> {
        let mut preference = null_mut();
        assert_eq!(unsafe { cublasLtMatmulPreferenceCreate(&mut preference) }, 0);
        set_preference(preference, 1, &workspace);
        self.choose_by(preference)
    }

    pub fn choose_by(&self, preference: *mut c_void) -> Result<Choice, i32> {
        let mut choice = std::mem::MaybeUninit::<Choice>::uninit();
        let mut returned = -1;
        let [a, b, c, d] = self.layouts;
        let status = unsafe {
            cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.descriptor,
                a,
                b,
                c,
                d,
                preference,
                1,
                choice.as_mut_ptr(),
                &mut returned,
            )
        };
        assert_eq!(returned, i32::from(status == 0));
        if status == 0 { Ok(unsafe { choice.assume_init() }) } else { Err(status) }
    }

    /// Puts the product on a stream, by an algorithm that the library chooses.
    pub fn launch(&self, stream: *mut c_void) -> i32 {
        self.put(std::ptr::null(), 0, 0, stream)
    }

    pub fn launch_by(
        &self,
        algorithm: &Algorithm,
        workspace: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> i32 {
        self.put(algorithm, workspace, bytes, stream)
    }

    fn put(
        &self,
        algorithm: *const Algorithm,
        workspace: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> i32 {
        let [a, b, c, d, ..] = self.operands;
        let scalar = |place: usize| match self.on_device {
            Some(address) => (address + 4 * place as u64) as *const f32,
            None => from_ref(&self.scalars[place]),
        };
        unsafe {
            cublasLtMatmul(
                self.handle,
                self.descriptor,
                scalar(0),
                a as *const c_void,
                self.layouts[0],
                b as *const c_void,
                self.layouts[1],
                scalar(1),
                c as *const c_void,
                self.layouts[2],
                d as *mut c_void,
                self.layouts[3],
                algorithm,
                workspace as *mut c_void,
                bytes,
                stream,
            )
        }
    }
}

pub fn set_matmul<T>(descriptor: *mut c_void, attribute: i32, value: &T) {
    let (place, bytes) = (from_ref(value).cast(), size_of::<T>());
    let status = unsafe { cublasLtMatmulDescSetAttribute(descriptor, attribute, place, bytes) };
    assert_eq!(status, 0);
}

pub fn set_layout<T>(layout: *mut c_void, attribute: i32, value: &T) {
    let (place, bytes) = (from_ref(value).cast(), size_of::<T>());
    let status = unsafe { cublasLtMatrixLayoutSetAttribute(layout, attribute, place, bytes) };
    assert_eq!(status, 0);
}

pub fn set_preference<T>(preference: *mut c_void, attribute: i32, value: &T) {
    let (place, bytes) = (from_ref(value).cast(), size_of::<T>());
    let status =
        unsafe { cublasLtMatmulPreferenceSetAttribute(preference, attribute, place, bytes) };
    assert_eq!(status, 0);
}

fn bytes_of(element: i32) -> usize {
    Element::of(element).expect("a type").bytes()
}

/// A number from -1 to 1.
fn random(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 40) as f64 / f64::from(1 << 23) - 1.0
}

fn rounded(element: Element, value: f64) -> f64 {
    let mut bytes = [0; 4];
    let bytes = &mut bytes[..element.bytes()];
    element.write(value as f32, bytes);
    f64::from(element.read(bytes))
}

fn packed(element: i32, values: &[f64]) -> Vec<u8> {
    let element = Element::of(element).expect("a type");
    let mut bytes = vec![0; values.len() * element.bytes()];
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(element.bytes())) {
        element.write(*value as f32, bytes);
    }
    bytes
}

fn unpacked(element: i32, address: u64, count: usize) -> Vec<f64> {
    let element = Element::of(element).expect("a type");
    let bytes: Vec<u8> = download(address, count * element.bytes());
    bytes.chunks_exact(element.bytes()).map(|bytes| f64::from(element.read(bytes))).collect()
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}
