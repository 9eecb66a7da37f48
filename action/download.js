// Downloads, through the runner's proxy.
import { HttpClient } from '@actions/http-client'

/** shown is an address without user, password and parameters, for messages. */
export function shown(address) {
  const url = new URL(address)
  return `${url.protocol}//${url.host}${url.pathname}`
}

/**
 * download returns a file of a release at an address. The file may have a number of bytes, and the server may be
 * silent for a number of milliseconds.
 */
export async function download(release, name, limit, silence = 60_000) {
  // Some servers read a plus sign as a space.
  const url = new URL(release.replaceAll('+', '%2B'))
  url.pathname = `${url.pathname.replace(/\/$/, '')}/${name}`
  const headers = { 'Accept-Encoding': 'identity' }
  if (url.username || url.password) {
    const user = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`
    headers.Authorization = `Basic ${Buffer.from(user).toString('base64')}`
  }
  const client = new HttpClient('karve-action', [], { allowRetries: true, maxRetries: 3, socketTimeout: silence })
  let response
  try {
    response = await client.get(url.href, headers)
  } catch (error) { // the client's messages may have the path with the parameters
    throw new Error(`${shown(url)}: ${error.code || error.message.replaceAll(url.search || '\0', '')}`)
  }
  const { message } = response
  try {
    if (message.statusCode !== 200) {
      throw new Error(`${message.statusCode} ${message.statusMessage}`)
    }
    message.setTimeout(silence, () => message.destroy(new Error(`the server sent nothing for ${silence / 1000} s`)))
    const chunks = []
    let size = 0
    for await (const chunk of message) {
      size += chunk.length
      if (size > limit) {
        throw new Error(`it has more than ${limit} bytes`)
      }
      chunks.push(chunk)
    }
    return Buffer.concat(chunks)
  } catch (error) {
    throw new Error(`${shown(url)}: ${error.message}`)
  } finally {
    message.destroy()
  }
}
