//! An exported library, safe to use: what C gave is freed when its owner goes.

use std::ffi::{c_char, c_int, c_void, CStr, CString};

const MAX_RANK: usize = 8;
const MAX_NAME: usize = 128;
const MAX_SYMBOL: usize = 64;

/// Name, dtype (NumPy's name of it) and shape of an input; a dimension of -1 is known only at run time, and has its
/// smallest extent in `least` and its name in `symbol`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Spec {
    name: [c_char; MAX_NAME],
    dtype: [c_char; 16],
    rank: c_int,
    shape: [i64; MAX_RANK],
    least: [i64; MAX_RANK],
    symbol: [[c_char; MAX_SYMBOL]; MAX_RANK],
}

#[repr(C)]
struct RawArray {
    data: *mut c_void,
    dtype: [c_char; 16],
    rank: c_int,
    shape: [i64; MAX_RANK],
}

#[repr(C)]
struct RawModel {
    _private: [u8; 0],
}

extern "C" {
    fn model_open(path: *const c_char) -> *mut RawModel;
    fn model_close(model: *mut RawModel);
    fn model_error() -> *const c_char;
    fn model_name(model: *const RawModel) -> *const c_char;
    fn model_inputs(model: *const RawModel) -> c_int;
    fn model_outputs(model: *const RawModel) -> c_int;
    fn model_input(model: *const RawModel, index: c_int) -> *const Spec;
    fn model_output(model: *const RawModel, index: c_int) -> *const RawArray;
    fn model_run(model: *mut RawModel, inputs: *const RawArray, count: c_int) -> c_int;
    fn array_alloc(array: *mut RawArray, dtype: *const c_char, rank: c_int, shape: *const i64) -> c_int;
    fn array_read_npy(path: *const c_char, array: *mut RawArray) -> c_int;
    fn array_free(array: *mut RawArray);
    fn array_count(array: *const RawArray) -> i64;
}

fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn checked(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(text(unsafe { model_error() }))
}

/// An array that an input takes.
#[repr(transparent)]
pub struct Array(RawArray);

impl Array {
    fn empty() -> Self {
        Array(RawArray { data: std::ptr::null_mut(), dtype: [0; 16], rank: 0, shape: [0; MAX_RANK] })
    }

    /// Ones for an input, of the smallest shape that it takes; integers too.
    pub fn ones(spec: &Spec) -> Result<Self, String> {
        let mut array = Self::empty();
        checked(unsafe { array_alloc(&mut array.0, spec.dtype.as_ptr(), spec.rank, spec.least.as_ptr()) })?;
        let count = unsafe { array_count(&array.0) } as usize;
        let data = array.0.data;
        // Alignment is 64 bytes, and the memory as long as `count` numbers of this dtype.
        match text(spec.dtype.as_ptr()).as_str() {
            "float32" => unsafe { std::slice::from_raw_parts_mut(data.cast::<f32>(), count).fill(1.0) },
            "int64" => unsafe { std::slice::from_raw_parts_mut(data.cast::<i64>(), count).fill(1) },
            "int32" => unsafe { std::slice::from_raw_parts_mut(data.cast::<i32>(), count).fill(1) },
            other => return Err(format!("{} is {other}: give a .npy file", text(spec.name.as_ptr()))),
        }
        Ok(array)
    }

    /// The array in a .npy file.
    pub fn read_npy(path: &str) -> Result<Self, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        let mut array = Self::empty();
        checked(unsafe { array_read_npy(path.as_ptr(), &mut array.0) })?;
        Ok(array)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        unsafe { array_free(&mut self.0) }
    }
}

/// An open library.  Calls run one after another; open it several times to run several at once.
pub struct Model(*mut RawModel);

impl Model {
    /// Opens a library, and checks that it is what was exported and that this CPU can run it.
    pub fn open(path: &str) -> Result<Self, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        let model = unsafe { model_open(path.as_ptr()) };
        if model.is_null() {
            return Err(text(unsafe { model_error() }));
        }
        Ok(Model(model))
    }

    /// Name of the model.
    pub fn name(&self) -> String {
        text(unsafe { model_name(self.0) })
    }

    /// Its inputs, in order.
    pub fn inputs(&self) -> Vec<Spec> {
        (0..unsafe { model_inputs(self.0) }).map(|index| unsafe { *model_input(self.0, index) }).collect()
    }

    /// Number of its outputs.
    pub fn outputs(&self) -> usize {
        unsafe { model_outputs(self.0) as usize }
    }

    /// Runs it on arrays in the order of its inputs.
    pub fn run(&mut self, inputs: &[Array]) -> Result<(), String> {
        checked(unsafe { model_run(self.0, inputs.as_ptr().cast::<RawArray>(), inputs.len() as c_int) })
    }

    /// An output of the last run, until the next; None where it is not float32.
    pub fn output_f32(&self, index: usize) -> Option<&[f32]> {
        let array = unsafe { model_output(self.0, index as c_int).as_ref() }?;
        if text(array.dtype.as_ptr()) != "float32" {
            return None;
        }
        let count = unsafe { array_count(array) } as usize;
        Some(unsafe { std::slice::from_raw_parts(array.data.cast::<f32>(), count) })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { model_close(self.0) }
    }
}
