//! The wire codec: batches of events as msgpack, in the dialects of SGLang and vLLM.
