// Files for the reader, and texts made small enough to keep or to send.

async function through(transform, blob) {
  return new Response(blob.stream().pipeThrough(transform));
}

// A text as base64 of its gzip.
async function pack(text) {
  const answer = await through(new CompressionStream("gzip"), new Blob([text]));
  const letters = Array.from(new Uint8Array(await answer.arrayBuffer()), (byte) => String.fromCharCode(byte));
  return btoa(letters.join(""));
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

async function unpack(base64) {
  return (await through(new DecompressionStream("gzip"), new Blob([bytesOf(base64)]))).text();
}

// Hand a file to the reader.
function save(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
