import assert from 'node:assert/strict'
import * as http from 'node:http'
import { test } from 'node:test'

import { download } from './download.js'

// serve returns the address of a web server with credentials and a parameter in it.
async function serve(t, answer) {
  const server = http.createServer(answer)
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://secret1:secret2@127.0.0.1:${server.address().port}/karve+1/?token=secret3`
}

// fails checks the message, which must have no secret.
function fails(promise, want) {
  return assert.rejects(promise, error => {
    assert.match(error.message, want)
    assert.doesNotMatch(error.message, /secret/)
    return true
  })
}

test('the credentials of a mirror are sent', async t => {
  let asked
  const url = await serve(t, (request, response) => {
    asked = [request.url, Buffer.from(request.headers.authorization.slice('Basic '.length), 'base64').toString()]
    response.end('content')
  })
  assert.equal(String(await download(url, 'SHA256SUMS', 7)), 'content')
  assert.deepEqual(asked, ['/karve%2B1/SHA256SUMS?token=secret3', 'secret1:secret2'])
})

test('a file that is not there', async t => {
  const url = await serve(t, (_, response) => response.writeHead(404).end())
  await fails(download(url, 'SHA256SUMS', 10), /\/karve%2B1\/SHA256SUMS: 404 Not Found$/)
})

test('a file without an end', async t => {
  const url = await serve(t, (_, response) => {
    const more = () => { while (response.write('x'.repeat(1024))); }
    response.on('drain', more)
    more()
  })
  await fails(download(url, 'SHA256SUMS', 1 << 20), /SHA256SUMS: it has more than 1048576 bytes$/)
})

test('a server that sends nothing', async t => {
  const url = await serve(t, () => {})
  await fails(download(url, 'SHA256SUMS', 10, 100), /SHA256SUMS: Request timeout/)
})

test('a server that goes silent', async t => {
  const url = await serve(t, (_, response) => { response.write('begin') })
  await fails(download(url, 'SHA256SUMS', 10, 100), /SHA256SUMS: (the server sent nothing|aborted)/)
})

test('no server', async () => {
  await fails(download('http://secret1:secret2@127.0.0.1:1/?token=secret3', 'SHA256SUMS', 10), /SHA256SUMS: ECONNREFUSED$/)
})
